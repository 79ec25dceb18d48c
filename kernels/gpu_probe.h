// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace vitrine {

/// Runs on a GPU what training steps are made of, and compares the results with the host's: kernels that depend on each
/// other on two streams, a copy, a memset, timed spans, a product, and numbers that pass through the host's memory;
/// a convolution where GpuFeature::cudnn is on; then all but that, twice, as a CUDA graph where GpuFeature::graphs is
/// on. Takes 8 MiB of the GPU for that time.
///
/// A GPU that fails may end the process or never answer, so call it in a process of its own, with the features
/// (runtime/gpu_features.h) that are to be tried; the program `vitrine` does, and turns off what fails. throws
/// UnsupportedError without GPUs; CudaError, DataError for a wrong result
void probe_gpu(int gpu);

/// Copies 1 MiB from each of the GPUs to each other one, and compares: behind an IOMMU, and on some boards, copies
/// between peers deliver garbage. Call and throws as probe_gpu().
void probe_peers(const std::vector<int>& gpus);

}  // namespace vitrine
