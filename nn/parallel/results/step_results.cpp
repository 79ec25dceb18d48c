// SPDX-License-Identifier: Apache-2.0
// What an engine reports about its steps.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "runtime/copy.h"
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

double StepResult::mean_loss() const {
  return valid > 0 ? loss_sum / static_cast<double>(valid) : std::numeric_limits<double>::quiet_NaN();
}

StepResult result_from(const float* totals) {
  StepResult result;
  result.loss_sum = totals[LossTotals::kLossSum];
  const double valid = LossTotals::count(totals, LossTotals::kValid);
  result.valid = std::isnan(valid)
                     ? 0
                     : static_cast<int64_t>(valid);  // NaN: a target was out of range, which is an error of its own
  result.correct = static_cast<int64_t>(LossTotals::count(totals, LossTotals::kCorrect));
  result.top5 = static_cast<int64_t>(LossTotals::count(totals, LossTotals::kTop5));
  return result;
}

void Engine::State::read_step(int slot) {
  Replica& root = replica(0);
  const View to = readout(slot);
  {
    const PhaseScope phase(root.compute(), Phase::optimizer);
    copy(root.compute(), root.tail(), to.rows(0, StepReadout::kControl));
    copy(root.compute(), root.scaler->control(), to.rows(StepReadout::kControl, StepReadout::kReductionError));
  }
  if (const View error = root.reducer->error())
    copy(root.compute(), error, to.rows(StepReadout::kReductionError, StepReadout::kCount));
  for_each([&](Replica& r) { r.compute().record(*r.step_done[static_cast<size_t>(slot)]); });
}

StepResult Engine::State::step_result(const Issued& issued) {
  note_host_read(devices, "take_step_results", readout(issued.slot));
  const float* values = readout(issued.slot).as<float>();
  const std::span<const float> control(values + StepReadout::kControl, StepControl::kCount);
  StepResult result = result_from(values);
  result.stop_votes = static_cast<int>(values[LossTotals::kCount]);
  result.loss_scale = control[StepControl::kLossScale];
  result.gradient_norm = control[StepControl::kNorm];
  result.skipped = control[StepControl::kSkipped] > 0.0F;
  result.diverged = control[StepControl::kStopped] != 0.0F;
  if (first_non_finite(control) >= 0)
    result.overflow = "the gradient of " + parameter_at(layout, first_non_finite(control));
  if (!std::isfinite(result.loss_sum)) result.overflow = "the loss";
  if (control[StepControl::kStopped] == StepControl::kByUpdate) result.overflow = "the update";
  if (issued.step == 0 && devices.world_size() > 1 && config.precision.reduce_dtype != DType::f32) {
    const float* const norms = values + StepReadout::kReductionError;
    result.reduction_error = static_cast<double>(norms[0]) / static_cast<double>(norms[1]);
  }
  return result;
}

std::string Engine::State::describe_non_finite(int32_t found) const {
  if (found < layout.size()) return "parameter " + layout.specs()[static_cast<size_t>(found)].name;
  if (found == layout.size()) return "the input";
  return "the output of " + model.net->parts()[static_cast<size_t>(found - layout.size() - 1)].name;
}

std::string Engine::State::find_first_non_finite(const Issued& issued) {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> found(replicas.size(), -1);
  searches_non_finite = true;
  begin_step(issued.step, issued.samples);
  for (const MicroBatch& part : training_part(issued.samples).micro_batches) {
    stage(issued.batch, part, config.scheme.staging, config.scheme.loss_at, true);
    for_each_at_once([&](Replica& r) { prepare_input(r); });
    forward(true);
  }
  searches_non_finite = false;
  const View numbers{found.data(), {static_cast<int64_t>(found.size())}, DType::i32, DeviceId::host()};
  for_each([&](Replica& r) {
    copy(r.compute(), r.first_non_finite, numbers.rows(r.ordinal, r.ordinal + 1));
    r.forget_micro_batch();
  });
  gathered = Tensor();
  devices.synchronize();
  note_host_read(devices, "find_first_non_finite", numbers);
  int32_t first = kNone;
  for (const int32_t number : found) first = number >= 0 ? std::min(first, number) : first;
  // All processes reach this point: the loss is the sum over all of them.
  if (devices.process_count() > 1) {
    first = std::stoi(devices.process_group()->exchange("what is not finite", std::to_string(first),
                                                        [](const std::vector<std::string>& answers) {
                                                          int32_t least = kNone;
                                                          for (const std::string& answer : answers)
                                                            least = std::min(least, std::stoi(answer));
                                                          return std::vector<std::string>{std::to_string(least)};
                                                        }));
  }
  return first == kNone ? std::string() : describe_non_finite(first);
}

namespace {

std::string remedies(const EngineConfig& config) {
  const DType compute = config.precision.compute;
  if (compute == DType::f32) return "lower the learning rate, or clip the gradient's norm";
  return fmt::format("lower the learning rate, clip the gradient's norm, or compute in {}",
                     compute == DType::f16 ? "bf16 or f32" : "f32");
}

}  // namespace

void Engine::State::stop_training(const Issued& issued, StepResult& result) {
  // The steps issued after it have changed nothing.
  for (; !in_flight.empty(); in_flight.pop_front()) {
    wait_step_done(in_flight.front().slot);
    throw_if_failed();
  }
  const bool by_update = result.overflow == "the update";
  if (!by_update) {
    issue_or_recover([&] {
      // A layer such as ReLU may turn NaN into a number, so that NaN shows up in the gradient first.
      if (const std::string found = find_first_non_finite(issued); !found.empty()) result.overflow = found;
    });
  }
  for (auto& r : replicas) r->scaler->resume(r->compute());
  skipped_in_row = 0;
  const std::string what =
      by_update
          ? fmt::format("the update of step {} would make parameters infinite or NaN, and these keep their values",
                        issued.step + 1)
          : fmt::format(
                "the {} of step {} is not finite, first {}; the parameters are those of the step before",
                std::isfinite(result.loss_sum) ? "gradient" : "loss", issued.step + 1,
                result.overflow == "the loss" ? "the loss itself, whose logits are finite" : "in " + result.overflow);
  throw DivergedError(fmt::format("training has diverged: {}. To continue, {}", what, remedies(config)));
}

void Engine::State::throw_if_diverged(const StepResult& result) {
  skipped_in_row = result.skipped ? skipped_in_row + 1 : 0;
  if (!result.skipped) return;
  const LossScaling& scaling = config.precision.loss_scaling;
  const bool dynamic = scaling.kind == LossScaling::Kind::dynamic;
  const bool at_floor = dynamic && result.loss_scale * scaling.constants.backoff_factor < scaling.floor;
  if (!at_floor && skipped_in_row < kMostSkipped) return;
  const int skipped = std::exchange(skipped_in_row, 0);
  throw DivergedError(
      fmt::format("training has diverged: the gradients of {} steps in a row were not finite, the last one {}, first "
                  "in {}; the parameters are those of the step "
                  "before. To continue, {}",
                  skipped,
                  at_floor ? fmt::format("at loss scale {}, the lowest that is tried", result.loss_scale)
                           : fmt::format("at loss scale {}", result.loss_scale),
                  result.overflow, remedies(config)));
}

}  // namespace vitrine
