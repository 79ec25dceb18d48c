// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/cuda/dtype.cuh"
#include "runtime/cuda/fused_sum.h"

namespace vitrine::cuda {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

template <class T>
struct Buffers {
  const T* inputs[kMostSumRanks];
  T* outputs[kMostSumRanks];
  int input_count, output_count;
};

/// N elements, moved as one access.
template <class T, int N>
struct alignas(sizeof(T) * N) Elements {
  T v[N];
};

/// begin and end count packs of N elements.
template <class T, int N>
__global__ void sum_elements(Buffers<T> b, int64_t begin, int64_t end) {
  using E = Elements<T, N>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += stride) {
    float sum[N];
    const E first = reinterpret_cast<const E*>(b.inputs[0])[i];
    for (int e = 0; e < N; ++e) sum[e] = to_float(first.v[e]);
    for (int r = 1; r < b.input_count; ++r) {
      const E next = reinterpret_cast<const E*>(b.inputs[r])[i];
      for (int e = 0; e < N; ++e) sum[e] += to_float(next.v[e]);
    }
    E out;
    for (int e = 0; e < N; ++e) out.v[e] = from_float<T>(sum[e]);
    for (int r = 0; r < b.output_count; ++r) reinterpret_cast<E*>(b.outputs[r])[i] = out;
  }
}

template <class T, int N>
void queue_sum(cudaStream_t stream, const Buffers<T>& buffers, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const int64_t blocks = std::clamp<int64_t>((end - begin + kThreads - 1) / kThreads, 1, kMostBlocks);
  launch(stream, sum_elements<T, N>, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(kThreads)), buffers, begin, end);
}

template <class T>
void sum_all(cudaStream_t stream, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T));
  Buffers<T> buffers{};
  uintptr_t addresses = 0;
  for (const void* p : inputs) {
    buffers.inputs[buffers.input_count++] = static_cast<const T*>(p);
    addresses |= reinterpret_cast<uintptr_t>(p);
  }
  for (void* p : outputs) {
    buffers.outputs[buffers.output_count++] = static_cast<T*>(p);
    addresses |= reinterpret_cast<uintptr_t>(p);
  }
  // Packs from the first multiple of their length to the last; single elements at both ends.
  const bool aligned = addresses % 16 == 0;
  const int64_t packs_begin = aligned ? std::min(end, (begin + kPack - 1) / kPack * kPack) : end;
  const int64_t packs_end = aligned ? std::max(packs_begin, end / kPack * kPack) : end;
  queue_sum<T, 1>(stream, buffers, begin, packs_begin);
  queue_sum<T, kPack>(stream, buffers, packs_begin / kPack, packs_end / kPack);
  queue_sum<T, 1>(stream, buffers, packs_end, end);
}

}  // namespace

void sum_to_all(cudaStream_t stream, DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
  with_storage(dtype, [&]<class T>() { sum_all<T>(stream, inputs, outputs, begin, end); });
}

}  // namespace vitrine::cuda
