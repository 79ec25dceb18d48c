// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/fused.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/cpu/half_lanes.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine::comm {
namespace {

constexpr int64_t kVecFloats = cpu::kLanes;
constexpr int64_t kBlockFloats = 4 * kVecFloats;
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

// kInputs: their number where it is known when compiled, else 0.
template <class T, int kInputs>
void sum_range(const Inputs<T>& in, int input_count, const Outputs<T>& out, int output_count, int64_t begin, int64_t end) {
  const int count = kInputs != 0 ? kInputs : input_count;
  int64_t i = begin;
  for (; i + kBlockFloats <= end; i += kBlockFloats) {
    cpu::FloatLanes a = load(in[0] + i), b = load(in[0] + i + kVecFloats), c = load(in[0] + i + 2 * kVecFloats), d = load(in[0] + i + 3 * kVecFloats);
    for (int r = 1; r < count; ++r) {
      const T* const p = in[static_cast<size_t>(r)] + i;
      a += load(p);
      b += load(p + kVecFloats);
      c += load(p + 2 * kVecFloats);
      d += load(p + 3 * kVecFloats);
    }
    for (int r = 0; r < output_count; ++r) {
      T* const p = out[static_cast<size_t>(r)] + i;
      cpu::store(a, p);
      cpu::store(b, p + kVecFloats);
      cpu::store(c, p + 2 * kVecFloats);
      cpu::store(d, p + 3 * kVecFloats);
    }
  }
  for (; i < end; ++i) {
    float sum = cpu::to_float(in[0][i]);
    for (int r = 1; r < count; ++r) sum += cpu::to_float(in[static_cast<size_t>(r)][i]);
    for (int r = 0; r < output_count; ++r) out[static_cast<size_t>(r)][i] = cpu::from_float<T>(sum);
  }
}

template <class T>
using SumRange = void (*)(const Inputs<T>&, int, const Outputs<T>&, int, int64_t, int64_t);

template <class T>
SumRange<T> sum_range_for(size_t inputs) {
  switch (inputs) {
    case 2:
      return sum_range<T, 2>;
    case 3:
      return sum_range<T, 3>;
    case 4:
      return sum_range<T, 4>;
    case 8:
      return sum_range<T, 8>;
    default:
      return sum_range<T, 0>;
  }
}

template <class T>
void sum_of(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
  VITRINE_ASSERT(inputs.size() <= kMostInputs && outputs.size() <= kMostInputs, "a group has at most kMostInputs ranks");
  Inputs<T> in{};
  Outputs<T> out{};
  for (size_t r = 0; r < inputs.size(); ++r) in[r] = static_cast<const T*>(inputs[r]);
  for (size_t r = 0; r < outputs.size(); ++r) out[r] = static_cast<T*>(outputs[r]);
  const SumRange<T> sum = sum_range_for<T>(inputs.size());
  cpu::parallel_for(end - begin, kParallelGrain, [&](int64_t b, int64_t e) {
    sum(in, static_cast<int>(inputs.size()), out, static_cast<int>(outputs.size()), begin + b, begin + e);
  });
}

}  // namespace

void sum_to_all(DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
  switch (dtype) {
    case DType::f16:
      return sum_of<cpu::Half>(inputs, outputs, begin, end);
    case DType::bf16:
      return sum_of<cpu::BFloat16>(inputs, outputs, begin, end);
    default:
      return sum_of<float>(inputs, outputs, begin, end);
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
