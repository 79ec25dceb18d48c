// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cross_entropy.h"
#include "kernels/step_control.h"

/// Scalars of a step in device code: the counts of LossTotals, StepValues and UpdateCount.
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

/// The block of a view of StepValues; null for an empty view.
inline const StepValues* step_values(const ConstView& view) {
  return view ? reinterpret_cast<const StepValues*>(view.as<int32_t>()) : nullptr;
}

/// UpdateCount in device code.
struct CountedUpdate {
  int32_t* step;  // null: nothing is counted
  double lr, beta1, beta2;
  const StepValues* values;  // null, or lr and beta1

  explicit CountedUpdate(const UpdateCount& count)
      : step(count.step ? count.step.as<int32_t>() : nullptr),
        lr(count.lr),
        beta1(count.beta1),
        beta2(count.beta2),
        values(step_values(count.values)) {}

  /// Counts the update and writes its scalars if the step is taken. One thread.
  __device__ void begin(float* control) const {
    if (step == nullptr || control[StepControl::kActive] != 1.0F) return;
    const int32_t update = *step + 1;
    *step = update;
    control[StepControl::kUpdate] = __int_as_float(update);
    control[StepControl::kStepSize] =
        static_cast<float>((values != nullptr ? values->lr : lr) /
                           (1.0 - pow(values != nullptr ? values->momentum : beta1, static_cast<double>(update))));
    control[StepControl::kCorrection] = static_cast<float>(1.0 / sqrt(1.0 - pow(beta2, static_cast<double>(update))));
  }
};

}  // namespace vitrine::cuda
