// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/step_control.h"

namespace vitrine::cuda {

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
