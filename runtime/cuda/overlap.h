// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::cuda {

/// Whether launches on the current GPU may begin before the kernel that precedes them on the stream has ended
/// (programmatic dependent launch). True where the code that runs there waits for it: the GPU has compute
/// capability 9.0 or newer, and the driver did not compile the kernels from code for an older one. The environment
/// variable VITRINE_OVERLAP_LAUNCHES=off, read by the first call, makes it false. throws  CudaError; ConfigError if
/// that variable has another value than on and off
bool launches_overlap();

}  // namespace vitrine::cuda
