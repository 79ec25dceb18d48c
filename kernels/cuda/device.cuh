// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/check.h"
#include "runtime/cuda/launch.cuh"
#include "runtime/cuda/native.h"

/// What all kernels use: 16-byte packs, grids, sums over warps and blocks. A kernel begins with
/// wait_for_earlier_work().
///
/// Rules that let a kernel also run on the host (tests/standins): use CUDA's names for thread coordinates, barriers,
/// shuffles and shared memory;
/// `__shared__` only for arrays of fixed size; all threads of a block reach every barrier and shuffle; launch with
/// launch() or launch_cooperating(); use __fmul_rn etc. where rounding matters.
namespace vitrine::cuda {

/// N elements moved as one access of at most 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <class T>
inline constexpr int kPackElements = 16 / static_cast<int>(sizeof(T));

/// True when p may be accessed in packs of 16 bytes.
inline bool is_pack_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

inline constexpr int kBlockThreads = 256;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Grid of at least one block of kBlockThreads for `items` independent items: one item per thread, or several in a
/// grid-stride loop when they exceed the GPU. Results must not depend on its size.
inline dim3 grid_for(ExecContext& ctx, int64_t items) {
  const int64_t most = int64_t{32} * properties(ctx).multiprocessors;
  const int64_t blocks = ceil_div(items, kBlockThreads);
  return dim3(static_cast<unsigned>(blocks < 1 ? 1 : (blocks < most ? blocks : most)));
}

/// Memory for `count` objects at the start of the context's workspace.   throws  OutOfMemory
template <class T>
T* scratch(ExecContext& ctx, const char* operation, int64_t count = 1) {
  const int64_t needed = count * static_cast<int64_t>(sizeof(T));
  const View workspace = ctx.workspace();
  if ((workspace ? workspace.bytes() : 0) < needed) check::throw_small_workspace(ctx, operation, "", needed, needed);
  return static_cast<T*>(workspace.data);
}

__device__ inline int64_t first_item() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t item_stride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

/// Sums over the 32 lanes of a warp, in every lane; always in the same order. All lanes take part.
template <class T>
__device__ inline T warp_sum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  return value;
}

/// Sums over a block of 32 * n threads, n <= 32, in every thread; always in the same order. Contains barriers.
template <class T>
__device__ inline T block_sum(T value) {
  __shared__ T sums[32];
  value = warp_sum(value);
  const unsigned warp = threadIdx.x / 32;
  __syncthreads();  // the readers of an earlier sum are done
  if (threadIdx.x % 32 == 0) sums[warp] = value;
  __syncthreads();
  T total{};
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += sums[w];
  return total;
}

/// True in every thread of the last of `blocks` blocks to call it, which then sees what the others wrote before,
/// through volatile pointers. The counter is 0 before the first call and after the last. Contains barriers.
__device__ inline bool arrives_last(int32_t* counter, unsigned blocks) {
  __shared__ bool is_last[1];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last[0] = atomicAdd(counter, 1) == static_cast<int32_t>(blocks) - 1;
    if (is_last[0]) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return is_last[0];
}

}  // namespace vitrine::cuda
