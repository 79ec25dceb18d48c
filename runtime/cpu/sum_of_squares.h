// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

/// Private to runtime and kernels.
namespace vitrine::cpu {

/// Sum of squares in double, in an order that depends only on `count`.
inline double sum_of_squares(const float* values, int64_t count) {
  constexpr int64_t kPartialSums = 16;
  std::array<double, kPartialSums> sums{};
  int64_t i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
#pragma omp simd
    for (int64_t lane = 0; lane < kPartialSums; ++lane) {
      const auto v = static_cast<double>(values[i + lane]);
      sums[static_cast<size_t>(lane)] += v * v;
    }
  }
  for (; i < count; ++i)
    sums[static_cast<size_t>(i % kPartialSums)] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0.0;
  for (const double partial : sums) sum += partial;
  return sum;
}

}  // namespace vitrine::cpu
