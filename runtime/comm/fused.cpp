// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/fused.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "runtime/cpu/half_lanes.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine::comm {
namespace {

constexpr int64_t kVecFloats = cpu::kLanes;
constexpr size_t kBlockLanes = 4;
constexpr int64_t kBlockFloats = static_cast<int64_t>(kBlockLanes) * kVecFloats;
constexpr size_t kMostInputs = 64;
constexpr int64_t kParallelGrain = int64_t{1} << 15;  // below this a team costs more than it gives
constexpr int64_t kCopyTileBytes = int64_t{16} << 10;

template <class T>
using Inputs = std::array<const T*, kMostInputs>;
template <class T>
using Outputs = std::array<T*, kMostInputs>;

template <class T>
inline cpu::FloatLanes load(const T* p) {
  cpu::FloatLanes lanes;
  cpu::load(p, lanes);
  return lanes;
}

/// Combine `b` into `a`: single elements or lanes.
struct Add {
  template <class V>
  static void combine(V& a, const V& b) {
    a += b;
  }
};
// A NaN on either side stays.
struct Least {
  template <class V>
  static void combine(V& a, const V& b) {
    a = (b < a) | (b != b) ? b : a;
  }
};
struct Most {
  template <class V>
  static void combine(V& a, const V& b) {
    a = (b > a) | (b != b) ? b : a;
  }
};

template <class T>
struct Range {
  Inputs<T> inputs{};
  Outputs<T> outputs{};
  int input_count = 0, output_count = 0;
  int divisor = 1;
};

// kInputs: their number where it is known when compiled, else 0.
template <class T, class Combine, int kInputs>
void combine_range(const Range<T>& range, int64_t begin, int64_t end) {
  const int count = kInputs != 0 ? kInputs : range.input_count;
  const auto divisor = static_cast<float>(range.divisor);
  int64_t i = begin;
  for (; i + kBlockFloats <= end; i += kBlockFloats) {
    std::array<cpu::FloatLanes, kBlockLanes> lanes;
    for (size_t k = 0; k < kBlockLanes; ++k) lanes[k] = load(range.inputs[0] + i + static_cast<int64_t>(k) * kVecFloats);
    for (int r = 1; r < count; ++r) {
      const T* const p = range.inputs[static_cast<size_t>(r)] + i;
      for (size_t k = 0; k < kBlockLanes; ++k) Combine::combine(lanes[k], load(p + static_cast<int64_t>(k) * kVecFloats));
    }
    if (range.divisor != 1) {
      for (cpu::FloatLanes& lane : lanes) lane /= divisor;
    }
    for (int r = 0; r < range.output_count; ++r) {
      T* const p = range.outputs[static_cast<size_t>(r)] + i;
      for (size_t k = 0; k < kBlockLanes; ++k) cpu::store(lanes[k], p + static_cast<int64_t>(k) * kVecFloats);
    }
  }
  for (; i < end; ++i) {
    float value = cpu::to_float(range.inputs[0][i]);
    for (int r = 1; r < count; ++r) Combine::combine(value, cpu::to_float(range.inputs[static_cast<size_t>(r)][i]));
    if (range.divisor != 1) value /= divisor;
    for (int r = 0; r < range.output_count; ++r) range.outputs[static_cast<size_t>(r)][i] = cpu::from_float<T>(value);
  }
}

template <class Combine>
void combine_integers(const Range<int32_t>& range, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int32_t value = range.inputs[0][i];
    for (int r = 1; r < range.input_count; ++r) {
      const int32_t next = range.inputs[static_cast<size_t>(r)][i];
      if constexpr (std::is_same_v<Combine, Add>) {
        value = static_cast<int32_t>(static_cast<uint32_t>(value) + static_cast<uint32_t>(next));  // wraps around
      } else {
        Combine::combine(value, next);
      }
    }
    if (range.divisor != 1) value /= range.divisor;
    for (int r = 0; r < range.output_count; ++r) range.outputs[static_cast<size_t>(r)][i] = value;
  }
}

template <class T>
using CombineRange = void (*)(const Range<T>&, int64_t, int64_t);

template <class T>
CombineRange<T> combine_range_for(ReduceOp op, size_t inputs) {
  if (op == ReduceOp::min) return combine_range<T, Least, 0>;
  if (op == ReduceOp::max) return combine_range<T, Most, 0>;
  switch (inputs) {
    case 2:
      return combine_range<T, Add, 2>;
    case 3:
      return combine_range<T, Add, 3>;
    case 4:
      return combine_range<T, Add, 4>;
    case 8:
      return combine_range<T, Add, 8>;
    default:
      return combine_range<T, Add, 0>;
  }
}

template <>
CombineRange<int32_t> combine_range_for<int32_t>(ReduceOp op, size_t) {
  if (op == ReduceOp::min) return combine_integers<Least>;
  return op == ReduceOp::max ? combine_integers<Most> : combine_integers<Add>;
}

template <class T>
void combine_all(Reduction reduction, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
  VITRINE_ASSERT(inputs.size() <= kMostInputs && outputs.size() <= kMostInputs, "a group has at most kMostInputs ranks");
  Range<T> range;
  range.divisor = reduction.divisor;
  for (const void* input : inputs) range.inputs[static_cast<size_t>(range.input_count++)] = static_cast<const T*>(input);
  for (void* output : outputs) range.outputs[static_cast<size_t>(range.output_count++)] = static_cast<T*>(output);
  const CombineRange<T> combine = combine_range_for<T>(reduction.op, inputs.size());
  cpu::parallel_for(end - begin, kParallelGrain, [&](int64_t b, int64_t e) { combine(range, begin + b, begin + e); });
}

}  // namespace

void combine_to_all(DType dtype, Reduction reduction, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin,
                    int64_t end) {
  switch (dtype) {
    case DType::f16:
      return combine_all<cpu::Half>(reduction, inputs, outputs, begin, end);
    case DType::bf16:
      return combine_all<cpu::BFloat16>(reduction, inputs, outputs, begin, end);
    case DType::i32:
      return combine_all<int32_t>(reduction, inputs, outputs, begin, end);
    default:
      return combine_all<float>(reduction, inputs, outputs, begin, end);
  }
}

void copy_to_all(const void* source, std::span<void* const> outputs, int64_t bytes) {
  const auto* const from = static_cast<const std::byte*>(source);
  const int64_t tiles = (bytes + kCopyTileBytes - 1) / kCopyTileBytes;
  cpu::parallel_for(tiles, kParallelGrain * 4 / kCopyTileBytes, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t at = tile * kCopyTileBytes;
      const auto size = static_cast<size_t>(std::min(kCopyTileBytes, bytes - at));
      for (void* const output : outputs) {
        if (output != source) std::memcpy(static_cast<std::byte*>(output) + at, from + at, size);
      }
    }
  });
}

Slice slice_of(int64_t count, int64_t grain, int part, int parts) {
  const int64_t grains = (count + grain - 1) / grain;
  return {std::min(count, grains * part / parts * grain), std::min(count, grains * (part + 1) / parts * grain)};
}

}  // namespace vitrine::comm
