// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cross_entropy.h"

/// The counts of LossTotals in device code.
namespace vitrine::cuda {

__device__ inline double count_at(const float* totals, int64_t place) {
  double value = 0.0;
  double unit = 1.0;
  for (int64_t i = 0; i < LossTotals::kDigits; ++i) {
    value += unit * static_cast<double>(totals[place + i * LossTotals::kDigitStep]);
    unit *= static_cast<double>(LossTotals::kDigitBase);
  }
  return value;
}

__device__ inline void add_to_count(float* totals, int64_t place, int64_t more) {
  const double sum = count_at(totals, place) + static_cast<double>(more);
  if (sum != sum) return;
  auto rest = static_cast<int64_t>(sum);
  for (int64_t i = 0; i < LossTotals::kDigits; ++i) {
    totals[place + i * LossTotals::kDigitStep] =
        static_cast<float>(i + 1 < LossTotals::kDigits ? rest % LossTotals::kDigitBase : rest);
    rest /= LossTotals::kDigitBase;
  }
}

}  // namespace vitrine::cuda
