// SPDX-License-Identifier: Apache-2.0
// What an engine tells of its steps.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/data_parallel_state.h"
#include "nn/parallel/engine_state.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"

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

double StepResult::mean_loss() const { return valid > 0 ? loss_sum / static_cast<double>(valid) : std::numeric_limits<double>::quiet_NaN(); }

StepResult totals_from(const float* values) {
  StepResult totals;
  totals.loss_sum = values[LossTotals::kLossSum];
  const double valid = LossTotals::count(values, LossTotals::kValid);
  totals.valid = std::isnan(valid) ? 0 : static_cast<int64_t>(valid);  // NaN: a target was out of range, which is an error of its own
  totals.correct = static_cast<int64_t>(LossTotals::count(values, LossTotals::kCorrect));
  return totals;
}

StepResult Engine::State::step_result(const Issued& issued) {
  note_host_read(devices, "take_step_results", record(issued.slot));
  const float* values = record(issued.slot).as<float>();
  const std::span<const float> control(values + DataParallel::kTail, StepControl::kCount);
  StepResult totals = totals_from(values);
  totals.stop_votes = static_cast<int>(values[LossTotals::kCount]);
  totals.loss_scale = control[StepControl::kLossScale];
  totals.gradient_norm = control[StepControl::kNorm];
  totals.skipped = control[StepControl::kSkipped] > 0.0F;
  totals.diverged = control[StepControl::kStopped] != 0.0F;
  if (first_non_finite(control) >= 0) totals.overflow = "the gradient of " + parameter_at(parts->layout(), first_non_finite(control));
  if (!std::isfinite(totals.loss_sum)) totals.overflow = "the loss";
  if (control[StepControl::kStopped] == StepControl::kByUpdate) totals.overflow = "the update";
  if (issued.step == 0 && devices.world_size() > 1 && config.precision.reduce_dtype != DType::f32) {
    totals.reduction_error = static_cast<double>(values[kControlEnd]) / static_cast<double>(values[kControlEnd + 1]);
  }
  return totals;
}

std::string Engine::State::find_first_non_finite(const Issued& issued) {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  const DataParallel::NoReductionScope no_reduction(*parts);
  std::vector<int32_t> found(static_cast<size_t>(devices.size()), -1);
  parts->watch_for_non_finite(true);
  parts->begin_step(issued.step);
  issue_micro_batches(issued.batch, training_part(issued.samples));
  parts->watch_for_non_finite(false);
  parts->read_non_finite(View{found.data(), {devices.size()}, DType::i32, DeviceId::host()});
  devices.synchronize();
  note_host_read(devices, "find_first_non_finite", ConstView(found.data(), {devices.size()}, DType::i32, DeviceId::host()));
  int32_t first = kNone;
  for (const int32_t number : found) first = number >= 0 ? std::min(first, number) : first;
  // All processes are here: the loss is that of all.
  if (devices.process_count() > 1) {
    first = std::stoi(devices.process_group()->exchange("what is not finite", std::to_string(first), [](const std::vector<std::string>& numbers) {
      int32_t least = kNone;
      for (const std::string& number : numbers) least = std::min(least, std::stoi(number));
      return std::vector<std::string>{std::to_string(least)};
    }));
  }
  return first == kNone ? std::string() : parts->describe_non_finite(first);
}

namespace {

std::string remedies(const EngineConfig& config) {
  return fmt::format("lower the learning rate, clip the gradient's norm, or compute in {}",
                     config.precision.compute == DType::f16 ? "bf16 or f32" : "f32");
}

}  // namespace

void Engine::State::stop_training(const Issued& issued, StepResult& totals) {
  // The steps behind it have changed nothing.
  for (; !in_flight.empty(); in_flight.pop_front()) {
    parts->wait_step_done(in_flight.front().slot);
    throw_if_failed();
  }
  const bool by_update = totals.overflow == "the update";
  if (!by_update) {
    try {
      // A layer such as ReLU may turn NaN into a number, so that it is seen in the gradient first.
      if (const std::string found = find_first_non_finite(issued); !found.empty()) totals.overflow = found;
    } catch (...) {
      parts->watch_for_non_finite(false);
      const std::exception_ptr cause = parts->recover(std::current_exception());
      give_up_step();
      std::rethrow_exception(cause);
    }
  }
  parts->resume();
  skipped_in_row = 0;
  const std::string what =
      by_update ? fmt::format("the update of step {} would make parameters infinite or NaN, and these keep their values", issued.step + 1)
                : fmt::format("the {} of step {} is not finite, first {}; the parameters are those of the step before",
                              std::isfinite(totals.loss_sum) ? "gradient" : "loss", issued.step + 1,
                              totals.overflow == "the loss" ? "the loss itself, whose logits are finite" : "in " + totals.overflow);
  throw DivergedError(fmt::format("training has diverged: {}. To go on, {}", what, remedies(config)));
}

void Engine::State::throw_if_diverged(const StepResult& totals) {
  skipped_in_row = totals.skipped ? skipped_in_row + 1 : 0;
  if (!totals.skipped) return;
  const LossScaling& scaling = config.precision.loss_scaling;
  const bool dynamic = scaling.kind == LossScaling::Kind::dynamic;
  const bool at_floor = dynamic && totals.loss_scale * scaling.constants.backoff_factor < scaling.floor;
  if (!at_floor && skipped_in_row < kMostSkipped) return;
  const int skipped = std::exchange(skipped_in_row, 0);
  throw DivergedError(fmt::format(
      "training has diverged: the gradients of {} steps in a row were not finite, the last one {}, first in {}; the parameters are those of the step "
      "before. To go on, {}",
      skipped,
      at_floor ? fmt::format("at loss scale {}, the lowest that is tried", totals.loss_scale) : fmt::format("at loss scale {}", totals.loss_scale),
      totals.overflow, remedies(config)));
}

}  // namespace vitrine
