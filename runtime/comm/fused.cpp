// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/fused.h"

#include <algorithm>
#include <cstring>

#include "runtime/cpu/parallel.h"

namespace vitrine::comm {
namespace {

// Eight floats: one AVX register, two of NEON's.
using Vec = float __attribute__((vector_size(32), aligned(4), may_alias));

constexpr int64_t kVecFloats = 8;
constexpr int64_t kBlockFloats = 4 * kVecFloats;
constexpr int64_t kParallelGrain = int64_t{1} << 15;  // below this a team costs more than it gives
constexpr int64_t kCopyTileBytes = int64_t{16} << 10;

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

// kInputs: their number where it is known when compiled, else 0.
template <int kInputs>
void sum_range(std::span<const float* const> inputs, std::span<float* const> outputs, int64_t begin, int64_t end) {
  const int count = kInputs != 0 ? kInputs : static_cast<int>(inputs.size());
  const float* const* const in = inputs.data();
  int64_t i = begin;
  for (; i + kBlockFloats <= end; i += kBlockFloats) {
    Vec a = load(in[0] + i), b = load(in[0] + i + kVecFloats), c = load(in[0] + i + 2 * kVecFloats), d = load(in[0] + i + 3 * kVecFloats);
    for (int r = 1; r < count; ++r) {
      const float* const p = in[r] + i;
      a += load(p);
      b += load(p + kVecFloats);
      c += load(p + 2 * kVecFloats);
      d += load(p + 3 * kVecFloats);
    }
    for (float* const output : outputs) {
      float* const p = output + i;
      store(p, a);
      store(p + kVecFloats, b);
      store(p + 2 * kVecFloats, c);
      store(p + 3 * kVecFloats, d);
    }
  }
  for (; i < end; ++i) {
    float sum = in[0][i];
    for (int r = 1; r < count; ++r) sum += in[r][i];
    for (float* const output : outputs) output[i] = sum;
  }
}

using SumRange = void (*)(std::span<const float* const>, std::span<float* const>, int64_t, int64_t);

SumRange sum_range_for(size_t inputs) {
  switch (inputs) {
    case 2:
      return sum_range<2>;
    case 3:
      return sum_range<3>;
    case 4:
      return sum_range<4>;
    case 8:
      return sum_range<8>;
    default:
      return sum_range<0>;
  }
}

}  // namespace

void sum_to_all(std::span<const float* const> inputs, std::span<float* const> outputs, int64_t begin, int64_t end) {
  const SumRange sum = sum_range_for(inputs.size());
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
