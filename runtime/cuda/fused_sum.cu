// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/cuda/dtype.cuh"
#include "runtime/cuda/fused_sum.h"
#include "runtime/leaf_tree.h"

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

template <class T>
struct TreeBuffers {
  const T* inputs[TreeOrder::kMostNodes];
  T* outputs[kMostSumRanks];
  uint8_t folds[TreeOrder::kMostNodes];
  int input_count, output_count;
};

template <class T, int N>
__global__ void add_along_tree(TreeBuffers<T> b, int64_t begin, int64_t end) {
  wait_for_earlier_work();
  using E = Elements<T, N>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += stride) {
    E waiting[TreeOrder::kMostPartials];
    int waits = 0;
    E sum = reinterpret_cast<const E*>(b.inputs[0])[i];
    for (int n = 1; n < b.input_count; ++n) {
      waiting[waits++] = sum;
      sum = reinterpret_cast<const E*>(b.inputs[n])[i];
      for (int fold = 0; fold < b.folds[n]; ++fold) {
        const E left = waiting[--waits];
        for (int e = 0; e < N; ++e) sum.v[e] = from_float<T>(to_float(left.v[e]) + to_float(sum.v[e]));
      }
    }
    for (int r = 0; r < b.output_count; ++r) reinterpret_cast<E*>(b.outputs[r])[i] = sum;
  }
}

template <class T, template <class> class Buffers>
void queue_range(cudaStream_t stream, void (*kernel)(Buffers<T>, int64_t, int64_t), const Buffers<T>& buffers,
                 int64_t begin, int64_t end) {
  if (begin >= end) return;
  const int64_t blocks = std::clamp<int64_t>((end - begin + kThreads - 1) / kThreads, 1, kMostBlocks);
  launch(stream, kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(kThreads)), buffers, begin,
         end);
}

template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// Queues a kernel for single elements, and the same for packs of kPack elements where the buffers are aligned.
template <class T, template <class> class Buffers>
void queue_packs(cudaStream_t stream, void (*single)(Buffers<T>, int64_t, int64_t),
                 void (*packed)(Buffers<T>, int64_t, int64_t), Buffers<T> buffers, std::span<const void* const> inputs,
                 std::span<void* const> outputs, int64_t begin, int64_t end) {
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
  constexpr int64_t kLength = kPack<T>;
  const bool aligned = addresses % 16 == 0;
  const int64_t packs_begin = aligned ? std::min(end, (begin + kLength - 1) / kLength * kLength) : end;
  const int64_t packs_end = aligned ? std::max(packs_begin, end / kLength * kLength) : end;
  queue_range<T>(stream, single, buffers, begin, packs_begin);
  queue_range<T>(stream, packed, buffers, packs_begin / kLength, packs_end / kLength);
  queue_range<T>(stream, single, buffers, packs_end, end);
}

template <class T, ReduceOp kOp>
void combine_all(cudaStream_t stream, int divisor, std::span<const void* const> inputs, std::span<void* const> outputs,
                 int64_t begin, int64_t end) {
  Buffers<T> buffers{};
  buffers.divisor = divisor;
  queue_packs<T>(stream, combine_elements<T, kOp, 1>, combine_elements<T, kOp, kPack<T>>, buffers, inputs, outputs,
                 begin, end);
}

template <class T>
void combine_as(cudaStream_t stream, comm::Combination combination, std::span<const void* const> inputs,
                std::span<void* const> outputs, int64_t begin, int64_t end) {
  if (combination.op == ReduceOp::min) return combine_all<T, ReduceOp::min>(stream, 1, inputs, outputs, begin, end);
  if (combination.op == ReduceOp::max) return combine_all<T, ReduceOp::max>(stream, 1, inputs, outputs, begin, end);
  combine_all<T, ReduceOp::sum>(stream, combination.divisor, inputs, outputs, begin, end);
}

}  // namespace

void combine_to_all(cudaStream_t stream, DType dtype, comm::Combination combination,
                    std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
  if (dtype == DType::i32) return combine_as<int32_t>(stream, combination, inputs, outputs, begin, end);
  with_storage(dtype, [&]<class T>() { combine_as<T>(stream, combination, inputs, outputs, begin, end); });
}

void tree_sum(cudaStream_t stream, DType dtype, std::span<const uint8_t> folds, std::span<const void* const> inputs,
              std::span<void* const> outputs, int64_t count) {
  with_storage(dtype, [&]<class T>() {
    TreeBuffers<T> buffers{};
    std::copy(folds.begin(), folds.end(), buffers.folds);
    queue_packs<T>(stream, add_along_tree<T, 1>, add_along_tree<T, kPack<T>>, buffers, inputs, outputs, 0, count);
  });
}

}  // namespace vitrine::cuda
