// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine {

/// Runs on a GPU what training steps are made of, and compares the results with the host's: kernels that depend on each
/// other on two streams, a copy, a memset, timed spans, a product, and numbers that pass through the host's memory;
/// then the same, twice, as a CUDA graph where GpuFeature::graphs is on. Takes 8 MiB of the GPU for that time.
///
/// A GPU that fails may end the process or never answer, so call it in a process of its own, with the features
/// (runtime/gpu_features.h) that are to be tried; the program `vitrine` does, and turns off what fails. throws
/// UnsupportedError without GPUs; CudaError, DataError for a wrong result
void probe_gpu(int gpu);

}  // namespace vitrine
