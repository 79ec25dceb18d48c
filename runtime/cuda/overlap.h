// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::cuda {

/// Whether launches on the current GPU may begin before the kernel that precedes them on the stream has ended
/// (programmatic dependent launch). True where the code that runs there waits for it: the GPU has compute
/// capability 9.0 or newer, and the driver did not compile the kernels from code for an older one. Only where
/// GpuFeature::overlapping_launches is on, which the first call asks. throws CudaError, ConfigError
///   kernel  any: it stands for all, which are compiled for the same GPUs
bool launches_overlap(const void* kernel);

}  // namespace vitrine::cuda
