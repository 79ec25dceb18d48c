// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "kernels/cpu/storage.h"

namespace vitrine::cpu {

/// Adds up kSums terms over [0, count) in 16 partial sums each, so that the bits do not depend on the instruction set.
/// A term may be a product: zero is added to it first, so that no compiler contracts it with the sum.
///   term  term(values, i) sets the kSums values at i: floats, or FloatLanes for as many elements
template <size_t kSums, class Term>
std::array<float, kSums> sum_row(int64_t count, const Term& term) {
  constexpr int64_t kPartial = 16;
  constexpr size_t kParts = kPartial / kLanes;
  std::array<std::array<FloatLanes, kSums>, kParts> lanes{};
  int64_t i = 0;
  for (; i + kPartial <= count; i += kPartial) {
    for_each_lane<kParts>([&](size_t part) {
      std::array<FloatLanes, kSums> values{};
      term(values, i + static_cast<int64_t>(part) * kLanes);
      for_each_lane<kSums>([&](size_t s) { lanes[part][s] += values[s] + 0.0F; });
    });
  }
  std::array<float, kSums> sums{};
  for (size_t s = 0; s < kSums; ++s) {
    std::array<float, kPartial> partial;
    for (size_t part = 0; part < kParts; ++part) store(lanes[part][s], partial.data() + part * kLanes);
    for (int64_t rest = i; rest < count; ++rest) {
      std::array<float, kSums> values{};
      term(values, rest);
      partial[static_cast<size_t>(rest - i)] += values[s] + 0.0F;
    }
    for (size_t step = kPartial / 2; step > 0; step /= 2) {
      for (size_t k = 0; k < step; ++k) partial[k] += partial[k + step];
    }
    sums[s] = partial[0];
  }
  return sums;
}

}  // namespace vitrine::cpu
