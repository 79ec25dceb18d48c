// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef VITRINE_STANDIN_DEVICE_HEADER
// Tests compile device code as C++ for the host: this header declares threadIdx, barriers, shuffles and launches.
#include VITRINE_STANDIN_DEVICE_HEADER
#else

#include <cuda_runtime.h>

#include "runtime/cuda/check.h"

namespace vitrine::cuda {

/// Queues kernel(args...) on the stream, whose GPU must be current. throws CudaError.
///   Every kernel uses this or launch_cooperating(). In tests that run kernels on the host, only threads of the latter can synchronize.
template <class... Params, class... Args>
void launch(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  VITRINE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

/// For kernels with __syncthreads, shuffles or shared memory.
template <class... Params, class... Args>
void launch_cooperating(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  launch(stream, kernel, grid, block, args...);
}

}  // namespace vitrine::cuda

#endif
