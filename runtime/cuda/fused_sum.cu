// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/cuda/fused_sum.h"
#include "runtime/cuda/launch.cuh"

namespace vitrine::cuda {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kMostBlocks = 4096;
constexpr int64_t kPack = 4;

struct Buffers {
  const float* inputs[kMostSumRanks];
  float* outputs[kMostSumRanks];
  int input_count, output_count;
};

/// T is float or float4; counts and offsets are in T.
template <class T, class Add>
__device__ void sum_elements(const Buffers& b, int64_t begin, int64_t end, Add add) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += stride) {
    T sum = reinterpret_cast<const T*>(b.inputs[0])[i];
    for (int r = 1; r < b.input_count; ++r) sum = add(sum, reinterpret_cast<const T*>(b.inputs[r])[i]);
    for (int r = 0; r < b.output_count; ++r) reinterpret_cast<T*>(b.outputs[r])[i] = sum;
  }
}

__global__ void sum_packs(Buffers b, int64_t begin, int64_t end) {
  sum_elements<float4>(b, begin, end, [](float4 x, float4 y) { return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w); });
}

__global__ void sum_floats(Buffers b, int64_t begin, int64_t end) {
  sum_elements<float>(b, begin, end, [](float x, float y) { return x + y; });
}

dim3 grid_for_items(int64_t items) { return dim3(static_cast<unsigned>(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, kMostBlocks))); }

}  // namespace

void sum_to_all(cudaStream_t stream, std::span<const float* const> inputs, std::span<float* const> outputs, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Buffers buffers{};
  uintptr_t addresses = 0;
  for (const float* p : inputs) {
    buffers.inputs[buffers.input_count++] = p;
    addresses |= reinterpret_cast<uintptr_t>(p);
  }
  for (float* p : outputs) {
    buffers.outputs[buffers.output_count++] = p;
    addresses |= reinterpret_cast<uintptr_t>(p);
  }
  const dim3 block(static_cast<unsigned>(kThreads));
  // Packs from the first multiple of four to the last; single elements at both ends.
  const bool aligned = addresses % sizeof(float4) == 0;
  const int64_t packs_begin = aligned ? std::min(end, (begin + kPack - 1) / kPack * kPack) : end;
  const int64_t packs_end = aligned ? std::max(packs_begin, end / kPack * kPack) : end;
  if (begin < packs_begin) launch(stream, sum_floats, grid_for_items(packs_begin - begin), block, buffers, begin, packs_begin);
  if (packs_begin < packs_end) {
    launch(stream, sum_packs, grid_for_items((packs_end - packs_begin) / kPack), block, buffers, packs_begin / kPack, packs_end / kPack);
  }
  if (packs_end < end) launch(stream, sum_floats, grid_for_items(end - packs_end), block, buffers, packs_end, end);
}

}  // namespace vitrine::cuda
