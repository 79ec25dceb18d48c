// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/fused.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "runtime/cpu/half_lanes.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/sum_of_squares.h"
#include "runtime/error.h"
#include "runtime/square_sums.h"

namespace vitrine::comm {
namespace {

constexpr int64_t kVecFloats = cpu::kLanes;
constexpr size_t kBlockLanes = 4;
constexpr int64_t kBlockFloats = static_cast<int64_t>(kBlockLanes) * kVecFloats;
constexpr int64_t kParallelGrain = int64_t{1} << 15;  // below this, threads cost more than they gain
constexpr int64_t kCopyTileBytes = int64_t{16} << 10;

template <class T>
inline cpu::FloatLanes load(const T* p) {
  cpu::FloatLanes lanes;
  cpu::load(p, lanes);
  return lanes;
}

/// Combine `b` into `a`, for single elements or lanes.
struct Add {
  template <class V>
  static void combine(V& a, const V& b) {
    a += b;
  }
};
// A NaN on either side is kept.
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

template <class From, class To>
struct Range {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  int divisor = 1;

  const From* input(size_t r) const { return static_cast<const From*>(inputs[r]); }
  To* output(size_t r) const { return static_cast<To*>(outputs[r]); }
};

// kInputs: the number of inputs if known at compile time, else 0.
template <class From, class To, class Combine, size_t kInputs>
void combine_range(const Range<From, To>& range, int64_t begin, int64_t end) {
  const size_t count = kInputs != 0 ? kInputs : range.inputs.size();
  const auto divisor = static_cast<float>(range.divisor);
  int64_t i = begin;
  for (; i + kBlockFloats <= end; i += kBlockFloats) {
    std::array<cpu::FloatLanes, kBlockLanes> lanes;
    const auto at = [](size_t k) { return static_cast<int64_t>(k) * kVecFloats; };
    cpu::for_each_lane<kBlockLanes>([&](size_t k) { lanes[k] = load(range.input(0) + i + at(k)); });
    for (size_t r = 1; r < count; ++r) {
      const From* const p = range.input(r) + i;
      cpu::for_each_lane<kBlockLanes>([&](size_t k) { Combine::combine(lanes[k], load(p + at(k))); });
    }
    if (range.divisor != 1) cpu::for_each_lane<kBlockLanes>([&](size_t k) { lanes[k] /= divisor; });
    for (size_t r = 0; r < range.outputs.size(); ++r) {
      To* const p = range.output(r) + i;
      cpu::for_each_lane<kBlockLanes>([&](size_t k) { cpu::store(lanes[k], p + at(k)); });
    }
  }
  for (; i < end; ++i) {
    float value = cpu::to_float(range.input(0)[i]);
    for (size_t r = 1; r < count; ++r) Combine::combine(value, cpu::to_float(range.input(r)[i]));
    if (range.divisor != 1) value /= divisor;
    for (size_t r = 0; r < range.outputs.size(); ++r) range.output(r)[i] = cpu::from_float<To>(value);
  }
}

template <class Combine>
void combine_integers(const Range<int32_t, int32_t>& range, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int32_t value = range.input(0)[i];
    for (size_t r = 1; r < range.inputs.size(); ++r) {
      const int32_t next = range.input(r)[i];
      if constexpr (std::is_same_v<Combine, Add>) {
        value = static_cast<int32_t>(static_cast<uint32_t>(value) + static_cast<uint32_t>(next));  // wraps around
      } else {
        Combine::combine(value, next);
      }
    }
    if (range.divisor != 1) value /= range.divisor;
    for (size_t r = 0; r < range.outputs.size(); ++r) range.output(r)[i] = value;
  }
}

template <class From, class To>
using CombineRange = void (*)(const Range<From, To>&, int64_t, int64_t);

template <class From, class To>
CombineRange<From, To> combine_range_for(ReduceOp op, size_t inputs) {
  if (op == ReduceOp::min) return combine_range<From, To, Least, 0>;
  if (op == ReduceOp::max) return combine_range<From, To, Most, 0>;
  if constexpr (std::is_same_v<From, To>) {
    switch (inputs) {
      case 2:
        return combine_range<From, To, Add, 2>;
      case 3:
        return combine_range<From, To, Add, 3>;
      case 4:
        return combine_range<From, To, Add, 4>;
      case 8:
        return combine_range<From, To, Add, 8>;
      default:
        break;
    }
  }
  return combine_range<From, To, Add, 0>;
}

template <>
CombineRange<int32_t, int32_t> combine_range_for<int32_t, int32_t>(ReduceOp op, size_t) {
  if (op == ReduceOp::min) return combine_integers<Least>;
  return op == ReduceOp::max ? combine_integers<Most> : combine_integers<Add>;
}

template <class From, class To>
void combine_all(Combination combination, std::span<const void* const> inputs, std::span<void* const> outputs,
                 int64_t begin, int64_t end) {
  const Range<From, To> range{inputs, outputs, combination.divisor};
  const CombineRange<From, To> combine = combine_range_for<From, To>(combination.op, inputs.size());
  cpu::parallel_for(end - begin, kParallelGrain, [&](int64_t b, int64_t e) { combine(range, begin + b, begin + e); });
}

/// Combinations of a 16-bit type: to itself, to f32 and from f32.
template <class Half>
void combine_halves(bool from_f32, bool to_f32, Combination combination, std::span<const void* const> inputs,
                    std::span<void* const> outputs, int64_t begin, int64_t end) {
  if (from_f32) return combine_all<float, Half>(combination, inputs, outputs, begin, end);
  if (to_f32) return combine_all<Half, float>(combination, inputs, outputs, begin, end);
  return combine_all<Half, Half>(combination, inputs, outputs, begin, end);
}

}  // namespace

void combine_to_all(DType from, DType to, Combination combination, std::span<const void* const> inputs,
                    std::span<void* const> outputs, int64_t begin, int64_t end) {
  const bool from_f32 = from == DType::f32, to_f32 = to == DType::f32;
  VITRINE_ASSERT(from == to || from_f32 || to_f32, "16-bit elements are combined to the same type or to f32");
  switch (from_f32 ? to : from) {
    case DType::f16:
      return combine_halves<cpu::Half>(from_f32, to_f32, combination, inputs, outputs, begin, end);
    case DType::bf16:
      return combine_halves<cpu::BFloat16>(from_f32, to_f32, combination, inputs, outputs, begin, end);
    case DType::i32:
      return combine_all<int32_t, int32_t>(combination, inputs, outputs, begin, end);
    default:
      return combine_all<float, float>(combination, inputs, outputs, begin, end);
  }
}

void combine_and_square(Combination combination, std::span<const void* const> inputs, std::span<void* const> outputs,
                        int64_t begin, int64_t end, int64_t squared, std::span<double* const> squares) {
  const Range<float, float> range{inputs, outputs, combination.divisor};
  const CombineRange<float, float> combine = combine_range_for<float, float>(combination.op, inputs.size());
  cpu::parallel_for(square_tiles(end - begin), kParallelGrain / kSquareTile, [&](int64_t first, int64_t last) {
    for (int64_t tile = begin / kSquareTile + first; tile < begin / kSquareTile + last; ++tile) {
      const int64_t tile_begin = tile * kSquareTile, tile_end = std::min(tile_begin + kSquareTile, end);
      combine(range, tile_begin, tile_end);
      if (tile_begin >= squared) continue;
      const double sum = cpu::sum_of_squares(range.output(0) + tile_begin, std::min(tile_end, squared) - tile_begin);
      for (double* const sums : squares) sums[tile] = sum;
    }
  });
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
