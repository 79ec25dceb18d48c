// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/cuda/dtype.cuh"
#include "runtime/cuda/fused_sum.h"

namespace vitrine::cuda {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

/// Type in which elements are combined: f32, or i32 for i32.
template <class T>
struct Arithmetic {
  using Value = float;
  static __device__ Value load(T element) { return to_float(element); }
  static __device__ T store(Value value) { return from_float<T>(value); }
  static __device__ Value add(Value a, Value b) { return a + b; }
};
template <>
struct Arithmetic<int32_t> {
  using Value = int32_t;
  static __device__ Value load(int32_t element) { return element; }
  static __device__ int32_t store(Value value) { return value; }
  static __device__ Value add(Value a, Value b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }  // wraps around
};

/// A NaN on either side is kept.
template <class T, ReduceOp kOp>
__device__ typename Arithmetic<T>::Value combined(typename Arithmetic<T>::Value a, typename Arithmetic<T>::Value b) {
  if constexpr (kOp == ReduceOp::min) return b < a || b != b ? b : a;
  if constexpr (kOp == ReduceOp::max) return b > a || b != b ? b : a;
  return Arithmetic<T>::add(a, b);
}

template <class T>
struct Buffers {
  const T* inputs[kMostSumRanks];
  T* outputs[kMostSumRanks];
  int input_count, output_count;
  int divisor;
};

/// N elements, moved with one access.
template <class T, int N>
struct alignas(sizeof(T) * N) Elements {
  T v[N];
};

/// begin and end count packs of N elements.
template <class T, ReduceOp kOp, int N>
__global__ void combine_elements(Buffers<T> b, int64_t begin, int64_t end) {
  wait_for_earlier_work();
  using E = Elements<T, N>;
  using A = Arithmetic<T>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += stride) {
    typename A::Value value[N];
    const E first = reinterpret_cast<const E*>(b.inputs[0])[i];
    for (int e = 0; e < N; ++e) value[e] = A::load(first.v[e]);
    for (int r = 1; r < b.input_count; ++r) {
      const E next = reinterpret_cast<const E*>(b.inputs[r])[i];
      for (int e = 0; e < N; ++e) value[e] = combined<T, kOp>(value[e], A::load(next.v[e]));
    }
    E out;
    for (int e = 0; e < N; ++e) {
      if (b.divisor != 1) value[e] /= static_cast<typename A::Value>(b.divisor);
      out.v[e] = A::store(value[e]);
    }
    for (int r = 0; r < b.output_count; ++r) reinterpret_cast<E*>(b.outputs[r])[i] = out;
  }
}

template <class T, ReduceOp kOp, int N>
void queue_combine(cudaStream_t stream, const Buffers<T>& buffers, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const int64_t blocks = std::clamp<int64_t>((end - begin + kThreads - 1) / kThreads, 1, kMostBlocks);
  launch(stream, combine_elements<T, kOp, N>, dim3(static_cast<unsigned>(blocks)),
         dim3(static_cast<unsigned>(kThreads)), buffers, begin, end);
}

template <class T, ReduceOp kOp>
void combine_all(cudaStream_t stream, int divisor, std::span<const void* const> inputs, std::span<void* const> outputs,
                 int64_t begin, int64_t end) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T));
  Buffers<T> buffers{};
  buffers.divisor = divisor;
  uintptr_t addresses = 0;
  for (const void* p : inputs) {
    buffers.inputs[buffers.input_count++] = static_cast<const T*>(p);
    addresses |= reinterpret_cast<uintptr_t>(p);
  }
  for (void* p : outputs) {
    buffers.outputs[buffers.output_count++] = static_cast<T*>(p);
    addresses |= reinterpret_cast<uintptr_t>(p);
  }
  // Packs from the first to the last multiple of their length; single elements at both ends.
  const bool aligned = addresses % 16 == 0;
  const int64_t packs_begin = aligned ? std::min(end, (begin + kPack - 1) / kPack * kPack) : end;
  const int64_t packs_end = aligned ? std::max(packs_begin, end / kPack * kPack) : end;
  queue_combine<T, kOp, 1>(stream, buffers, begin, packs_begin);
  queue_combine<T, kOp, kPack>(stream, buffers, packs_begin / kPack, packs_end / kPack);
  queue_combine<T, kOp, 1>(stream, buffers, packs_end, end);
}

template <class T>
void combine_as(cudaStream_t stream, comm::Reduction reduction, std::span<const void* const> inputs,
                std::span<void* const> outputs, int64_t begin, int64_t end) {
  if (reduction.op == ReduceOp::min) return combine_all<T, ReduceOp::min>(stream, 1, inputs, outputs, begin, end);
  if (reduction.op == ReduceOp::max) return combine_all<T, ReduceOp::max>(stream, 1, inputs, outputs, begin, end);
  combine_all<T, ReduceOp::sum>(stream, reduction.divisor, inputs, outputs, begin, end);
}

}  // namespace

void combine_to_all(cudaStream_t stream, DType dtype, comm::Reduction reduction, std::span<const void* const> inputs,
                    std::span<void* const> outputs, int64_t begin, int64_t end) {
  if (dtype == DType::i32) return combine_as<int32_t>(stream, reduction, inputs, outputs, begin, end);
  with_storage(dtype, [&]<class T>() { combine_as<T>(stream, reduction, inputs, outputs, begin, end); });
}

}  // namespace vitrine::cuda
