// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/fused.h"

#include <algorithm>
#include <cstring>

#include "runtime/cpu/half_lanes.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine::comm {
namespace {

constexpr int64_t kVecFloats = cpu::kLanes;
constexpr int64_t kBlockFloats = 4 * kVecFloats;
constexpr int64_t kParallelGrain = int64_t{1} << 15;  // below this a team costs more than it gives
constexpr int64_t kCopyTileBytes = int64_t{16} << 10;

template <class T>
inline cpu::FloatLanes load(const T* p) {
  cpu::FloatLanes lanes;
  cpu::load(p, lanes);
  return lanes;
}

using Inputs = std::span<const void* const>;
using Outputs = std::span<void* const>;

// kInputs: their number where it is known when compiled, else 0.
template <class From, class To, size_t kInputs>
void sum_range(Inputs inputs, Outputs outputs, int64_t begin, int64_t end) {
  const size_t count = kInputs != 0 ? kInputs : inputs.size();
  const auto in = [&](size_t r) { return static_cast<const From*>(inputs[r]); };
  const auto out = [&](size_t r) { return static_cast<To*>(outputs[r]); };
  int64_t i = begin;
  for (; i + kBlockFloats <= end; i += kBlockFloats) {
    const From* const first = in(0) + i;
    cpu::FloatLanes a = load(first), b = load(first + kVecFloats), c = load(first + 2 * kVecFloats), d = load(first + 3 * kVecFloats);
    for (size_t r = 1; r < count; ++r) {
      const From* const p = in(r) + i;
      a += load(p);
      b += load(p + kVecFloats);
      c += load(p + 2 * kVecFloats);
      d += load(p + 3 * kVecFloats);
    }
    for (size_t r = 0; r < outputs.size(); ++r) {
      To* const p = out(r) + i;
      cpu::store(a, p);
      cpu::store(b, p + kVecFloats);
      cpu::store(c, p + 2 * kVecFloats);
      cpu::store(d, p + 3 * kVecFloats);
    }
  }
  for (; i < end; ++i) {
    float sum = cpu::to_float(in(0)[i]);
    for (size_t r = 1; r < count; ++r) sum += cpu::to_float(in(r)[i]);
    for (size_t r = 0; r < outputs.size(); ++r) out(r)[i] = cpu::from_float<To>(sum);
  }
}

using SumRange = void (*)(Inputs, Outputs, int64_t, int64_t);

template <class T>
SumRange sum_range_of(size_t inputs) {
  switch (inputs) {
    case 2:
      return sum_range<T, T, 2>;
    case 3:
      return sum_range<T, T, 3>;
    case 4:
      return sum_range<T, T, 4>;
    case 8:
      return sum_range<T, T, 8>;
    default:
      return sum_range<T, T, 0>;
  }
}

SumRange sum_range_for(DType from, DType to, size_t inputs) {
  const bool narrows = from == DType::f32, widens = to == DType::f32;
  VITRINE_ASSERT(from == to || narrows || widens, "a sum of 16 bits is in the same 16 bits or in f32");
  const DType narrow = narrows ? to : from;
  switch (narrow) {
    case DType::f16:
      return narrows ? sum_range<float, cpu::Half, 0> : widens ? sum_range<cpu::Half, float, 0> : sum_range_of<cpu::Half>(inputs);
    case DType::bf16:
      return narrows ? sum_range<float, cpu::BFloat16, 0> : widens ? sum_range<cpu::BFloat16, float, 0> : sum_range_of<cpu::BFloat16>(inputs);
    default:
      return sum_range_of<float>(inputs);
  }
}

}  // namespace

void sum_to_all(DType from, Inputs inputs, DType to, Outputs outputs, int64_t begin, int64_t end) {
  const SumRange sum = sum_range_for(from, to, inputs.size());
  cpu::parallel_for(end - begin, kParallelGrain, [&](int64_t b, int64_t e) { sum(inputs, outputs, begin + b, begin + e); });
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
