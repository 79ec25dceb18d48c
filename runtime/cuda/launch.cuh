// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef VITRINE_STANDIN_DEVICE_HEADER
// Tests compile device code as C++ for the host: this header declares threadIdx, barriers, shuffles and launches.
#include VITRINE_STANDIN_DEVICE_HEADER
#else

#include <cuda_runtime.h>

#include "runtime/cuda/check.h"
#include "runtime/cuda/overlap.h"

namespace vitrine::cuda {

/// The first statement of every kernel (tools/check_includes): waits until all work that was queued on the stream
/// before this kernel is done and its writes are visible. Only what precedes it, a block's start and its parameters,
/// overlaps with the end of the kernel before; see launch().
__device__ __forceinline__ void wait_for_earlier_work() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// Queues kernel(args...) on the stream, whose GPU must be current. throws CudaError.
///   Every kernel uses this or launch_cooperating(). In tests that run kernels on the host, only threads of the latter
///     can synchronize.
///   Where launches_overlap(), the blocks start as soon as those of a kernel that directly precedes them on the stream
///     have ended, and wait in wait_for_earlier_work(); after other work, and elsewhere, they start when all work
///     before is done.
template <class... Params, class... Args>
void launch(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = launches_overlap(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  VITRINE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

/// For kernels with __syncthreads, shuffles or shared memory.
template <class... Params, class... Args>
void launch_cooperating(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  launch(stream, kernel, grid, block, args...);
}

}  // namespace vitrine::cuda

#endif
