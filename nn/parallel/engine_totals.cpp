// SPDX-License-Identifier: Apache-2.0
// What an engine tells of its steps.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "runtime/error.h"
#include "runtime/world/world.h"

namespace vitrine {
namespace {

/// The parameter that holds an element of the flat gradients.
std::string parameter_at(const FlatLayout& layout, int64_t element) {
  for (int i = 0; i < layout.size(); ++i) {
    const int64_t begin = layout.offset(i);
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    if (element >= begin && element < begin + spec.shape.numel()) return spec.name;
  }
  return {};
}

}  // namespace

double Totals::mean_loss() const { return valid > 0 ? loss_sum / static_cast<double>(valid) : std::numeric_limits<double>::quiet_NaN(); }

Totals totals_from(const float* values) {
  Totals totals;
  totals.loss_sum = values[LossTotals::kLossSum];
  totals.valid = static_cast<int64_t>(values[LossTotals::kValid]);
  totals.correct = static_cast<int64_t>(values[LossTotals::kCorrect]);
  return totals;
}

Totals Engine::State::step_totals(const Issued& issued) {
  const float* values = record(issued.slot).as<float>();
  const std::span<const float> control(values + DataParallel::kTail, StepControl::kCount);
  Totals totals = totals_from(values);
  totals.stop_votes = static_cast<int>(values[LossTotals::kCount]);
  totals.loss_scale = control[StepControl::kLossScale];
  totals.gradient_norm = control[StepControl::kNorm];
  totals.skipped = control[StepControl::kSkipped] > 0.0F;
  if (totals.skipped) totals.overflow = "the gradient of " + parameter_at(parts->layout(), first_non_finite(control));
  if (issued.first && devices.world_size() > 1 && config.precision.reduce_dtype != DType::f32) {
    totals.reduction_error = static_cast<double>(values[kControlEnd]) / static_cast<double>(values[kControlEnd + 1]);
  }
  if (!std::isfinite(totals.loss_sum)) totals.overflow = first_overflow(issued);
  return totals;
}

std::string Engine::State::first_overflow(const Issued& issued) {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  int32_t first = kNone;
  for (int d = 0; issued.watched && d < devices.size(); ++d) {
    const int32_t part = overflows(issued.slot).as<int32_t>()[d];
    if (part >= 0) first = std::min(first, part);
  }
  // All processes are here: the loss is that of all.
  if (issued.watched && devices.process_count() > 1) {
    first = std::stoi(devices.world()->exchange("the first overflow", std::to_string(first), [](const std::vector<std::string>& answers) {
      int32_t least = kNone;
      for (const std::string& answer : answers) least = std::min(least, std::stoi(answer));
      return std::vector<std::string>{std::to_string(least)};
    }));
  }
  return first == kNone ? std::string("the loss") : "the output of " + model.net->parts()[static_cast<size_t>(first)].name;
}

void Engine::State::throw_if_diverged(const Totals& totals) {
  skipped_in_row = totals.skipped ? skipped_in_row + 1 : 0;
  if (!totals.skipped) return;
  const LossScaling& scaling = config.precision.loss_scaling;
  const bool dynamic = scaling.kind == LossScaling::Kind::dynamic;
  const bool at_floor = dynamic && totals.loss_scale * scaling.constants.backoff_factor < scaling.floor;
  if (!at_floor && skipped_in_row < kMostSkipped) return;
  const int skipped = std::exchange(skipped_in_row, 0);
  throw DivergedError(fmt::format(
      "training has diverged: the gradients of {} steps in a row were not finite, the last one {}, first in {}; the parameters are those of the step "
      "before. Use a smaller --lr, --clip-norm 1, or --precision {}",
      skipped,
      at_floor ? fmt::format("at loss scale {}, the lowest that is tried", totals.loss_scale) : fmt::format("at loss scale {}", totals.loss_scale),
      totals.overflow, config.precision.compute == DType::f16 ? "bf16 or fp32" : "fp32"));
}

}  // namespace vitrine
