// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/step/step_window.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/step_control.h"
#include "nn/parallel/replicas/host_copies.h"
#include "runtime/clock.h"
#include "runtime/copy.h"
#include "runtime/gpu_features.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

constexpr size_t kStepsInFlight = kStepSlots;
constexpr int64_t kPollsBeforeSleep = 200;
constexpr std::chrono::microseconds kPollInterval{20};
constexpr int64_t kYieldNs = 1'000'000;  // a short step's end is found at once

/// What the host reads of a step, f32: the tail (totals and votes), the control, the two norms of Reducer::error(), and
/// as i32 the step's number.
struct StepReadout {
  static constexpr int64_t kControl = kTailElements;
  static constexpr int64_t kReductionError = kControl + StepControl::kCount;
  static constexpr int64_t kNumber = kReductionError + 2;
  static constexpr int64_t kCount = kNumber + 1;
};

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

std::string divergence_remedies(const EngineConfig& config) {
  std::vector<std::string> remedies{"lower the learning rate"};
  if (!config.update_in_backward) remedies.emplace_back("clip the gradient's norm");
  if (config.precision.mixed())
    remedies.emplace_back(config.precision.compute == DType::f16 ? "compute in bf16 or f32" : "compute in f32");
  if (config.optimizer.kind != OptimizerConfig::Kind::sgd && config.optimizer.adam_kernel().eps == 0.0)
    remedies.emplace_back("set the optimizer's eps above 0");
  if (remedies.size() > 1) remedies.back().insert(0, "or ");
  return fmt::format("{}", fmt::join(remedies, ", "));
}

void StepResult::add_totals(const StepResult& other) {
  loss_sum += other.loss_sum;
  valid += other.valid;
  correct += other.correct;
  top5 += other.top5;
  leaf_losses.resize(std::max(leaf_losses.size(), other.leaf_losses.size()));
  for (size_t i = 0; i < other.leaf_losses.size(); ++i) leaf_losses[i] += other.leaf_losses[i];
}

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

StepWindow::StepWindow(const EngineSetup& setup, ReplicaGroup& replicas, const PlannedBatches& batches, Search search)
    : setup_(setup),
      replicas_(replicas),
      batches_(batches),
      search_(std::move(search)),
      readouts_(kStepSlots * StepReadout::kCount * size_of(DType::f32), setup.devices.host_memory()),
      stopped_updates_(replicas.size() * kStepSlots * replicas[0].optimizer.stopped.bytes(),
                       setup.devices.host_memory()),
      step_done_(static_cast<size_t>(replicas.size())) {
  make_events();
  replicas_.on_recovery([this] {
    in_flight_.clear();
    make_events();
  });
}

void StepWindow::make_events() {
  for (auto& r : replicas_) {
    for (auto& event : step_done_[static_cast<size_t>(r->ordinal())]) event = r->compute().stream().make_event();
  }
}

int StepWindow::free_slot() {
  while (in_flight_.size() >= kStepsInFlight) finish_oldest();
  replicas_.throw_if_failed(!reads_in_work_);
  const int slot = static_cast<int>(progress_.steps % kStepSlots);
  std::atomic_ref(number_in(slot)).store(-1, std::memory_order_relaxed);
  return slot;
}

void StepWindow::add(int slot, const HostBatch& batch, int64_t samples) {
  in_flight_.push_back({slot, batch, samples, progress_.steps++});
}

void StepWindow::drain() {
  while (!in_flight_.empty()) finish_oldest();
  replicas_.issue_or_recover([&] { replicas_.finish_gathering(progress_.steps); });
}

void StepWindow::finish_oldest() {
  const Issued issued = in_flight_.front();
  replicas_.throw_if_failed(!wait_step_done(issued));
  in_flight_.pop_front();
  if (issued.step == progress_.first_step && setup_.peers() != nullptr) setup_.peers()->set_warm();
  finished_.push_back(step_result(issued));
  const int64_t passes = batches_.statistics_per_step(issued.samples);
  for (int64_t& counter : progress_.counters) counter += passes;
  if (finished_.back().diverged) stop_training(issued, finished_.back());
  throw_if_diverged(finished_.back());
}

bool StepWindow::wait_step_done(const Issued& issued) {
  if (!reads_in_work_) return wait_for_event(issued.slot);
  const auto arrived = [number = std::atomic_ref(number_in(issued.slot)), step = static_cast<int32_t>(issued.step)] {
    return number.load(std::memory_order_acquire) == step;
  };
  for (const int64_t begin = steady_now_ns(); steady_now_ns() - begin < kYieldNs; std::this_thread::yield()) {
    if (arrived()) return true;
  }
  // The event comes if the results do not, which have a failure then.
  replicas_.issue_or_recover([&] { record_done(issued.slot); });
  if (wait_for_event(issued.slot, arrived)) return true;
  replicas_.throw_if_failed(true);
  throw CudaError(
      fmt::format("step {} has ended on {}, but its results are not in the host's memory; {}=off avoids that",
                  issued.step + 1, replicas_[0].device.name(), variable_of(GpuFeature::graphs)));
}

bool StepWindow::wait_for_event(int slot, const std::function<bool()>& arrived) {
  const bool polls = replicas_.can_get_stuck() || arrived;
  std::optional<ProcessGroup::Waiting> waiting;
  for (auto& r : replicas_) {
    Event& done = *step_done_[static_cast<size_t>(r->ordinal())][static_cast<size_t>(slot)];
    // A stream would wait forever for a broken GPU or communicator, so the host polls.
    for (int64_t round = 0; polls && !done.reached(); ++round) {
      if (arrived && arrived()) return true;
      if (round < kPollsBeforeSleep) continue;
      if (!waiting && setup_.peers() != nullptr)
        waiting.emplace(*setup_.peers(), fmt::format("step {} on {}", progress_.steps - 1, r->device.name()));
      if (replicas_.is_stuck()) return false;
      std::this_thread::sleep_for(kPollInterval);
    }
    if (polls && r->compute().stream().lost()) return false;
    done.synchronize();
  }
  return arrived && arrived();
}

View StepWindow::readout(int slot) const {
  return readouts_.view({kStepSlots, StepReadout::kCount}, DType::f32)
      .rows(slot, slot + 1)
      .reshape({StepReadout::kCount});
}

View StepWindow::stopped_updates(int slot, const Replica& replica) const {
  const int64_t pieces = replica.optimizer.stopped.numel(), row = int64_t{replica.ordinal()} * kStepSlots + slot;
  return stopped_updates_.view({replicas_.size() * kStepSlots * pieces}, DType::f32)
      .rows(row * pieces, (row + 1) * pieces);
}

int32_t& StepWindow::number_in(int slot) const {
  return *reinterpret_cast<int32_t*>(readout(slot).as<float>() + StepReadout::kNumber);
}

void StepWindow::read_step(int slot) {
  replicas_.for_each([&](Replica& r) {
    if (reads_in_work_) return read_by_kernel(r, slot);
    if (r.optimizer.stopped) copy(r.compute(), r.optimizer.stopped, stopped_updates(slot, r));
    if (r.ordinal() > 0) return;
    const View to = readout(slot);
    {
      const PhaseScope phase(r.compute(), Phase::optimizer);
      copy(r.compute(), r.reducer_context.tail(), to.rows(0, StepReadout::kControl));
      copy(r.compute(), r.scaler->control(), to.rows(StepReadout::kControl, StepReadout::kReductionError));
    }
    if (const View error = r.reducer->error())
      copy(r.compute(), error, to.rows(StepReadout::kReductionError, StepReadout::kNumber));
  });
  if (!reads_in_work_) record_done(slot);
}

void StepWindow::read_by_kernel(Replica& r, int slot) {
  const PhaseScope phase(r.compute(), Phase::optimizer);
  const View to = readout(slot);
  std::vector<CopiedBlock> blocks{{r.reducer_context.tail(), to.rows(0, StepReadout::kControl)},
                                  {r.scaler->control(), to.rows(StepReadout::kControl, StepReadout::kReductionError)}};
  if (const View error = r.reducer->error())
    blocks.push_back({error, to.rows(StepReadout::kReductionError, StepReadout::kNumber)});
  if (r.optimizer.stopped) blocks.push_back({r.optimizer.stopped, stopped_updates(slot, r)});
  constexpr int64_t kStep = offsetof(StepValues, step) / sizeof(int32_t);
  const View number{to.as<float>() + StepReadout::kNumber, {1}, DType::i32, DeviceId::host()};
  copy_blocks(r.compute(), blocks, {r.scalars.values.rows(kStep, kStep + 1), number});
}

void StepWindow::record_done(int slot) {
  replicas_.for_each([&](Replica& r) {
    r.compute().record(*step_done_[static_cast<size_t>(r.ordinal())][static_cast<size_t>(slot)]);
  });
}

StepResult StepWindow::step_result(const Issued& issued) {
  note_host_read(setup_.devices, "take_step_results", readout(issued.slot));
  const float* values = readout(issued.slot).as<float>();
  const std::span<const float> control(values + StepReadout::kControl, StepControl::kCount);
  StepResult result = result_from(values);
  result.stop_votes = static_cast<int>(values[LossTotals::kCount]);
  result.loss_scale = control[StepControl::kLossScale];
  if (!setup_.config.update_in_backward) result.gradient_norm = control[StepControl::kNorm];
  result.skipped = control[StepControl::kSkipped] > 0.0F;
  result.diverged = control[StepControl::kStopped] != 0.0F;
  if (first_non_finite(control) >= 0) {
    // Replicas share the index modulo 2^30, and where gradients are sharded that in one of the shards.
    const bool known = !setup_.sharded() || (setup_.config.scheme.shard == Sharding::optimizer &&
                                             setup_.trained.parameter_elements() <= int64_t{1} << 30);
    result.overflow =
        "the gradient of " + (known ? parameter_at(setup_.trained, first_non_finite(control)) : "a parameter");
  }
  if (!std::isfinite(result.loss_sum)) result.overflow = "the loss";
  if (control[StepControl::kStopped] == StepControl::kByUpdate) result.overflow = "the update";
  if (issued.step == 0 && setup_.devices.world_size() > 1 && setup_.config.precision.reduce_dtype != DType::f32) {
    const float* const norms = values + StepReadout::kReductionError;
    result.reduction_error = static_cast<double>(norms[0]) / static_cast<double>(norms[1]);
  }
  return result;
}

std::string StepWindow::updated_before_stop(int slot) {
  const FlatLayout& layout = setup_.trained;
  int64_t end = layout.parameter_elements();
  for (auto& r : replicas_) {
    const View stopped = stopped_updates(slot, *r);
    note_host_read(setup_.devices, "take_step_results", stopped);
    const Shard& shard = r->optimizer.shard;
    const auto* const first =
        std::find_if(stopped.as<float>(), stopped.as<float>() + stopped.numel(), [](float v) { return v != 0.0F; });
    const auto piece = static_cast<size_t>(first - stopped.as<float>());
    if (piece < shard.size()) end = std::min(end, shard[piece].begin);
  }
  if (setup_.peers() != nullptr && setup_.sharded()) {
    const auto least = [](const std::vector<std::string>& ends) {
      const auto less = [](const std::string& a, const std::string& b) { return std::stoll(a) < std::stoll(b); };
      return std::vector<std::string>{*std::min_element(ends.begin(), ends.end(), less)};
    };
    end = std::stoll(setup_.peers()->exchange("where updates stopped", std::to_string(end), least));
  }
  std::vector<std::string> names;  // in the order of backward
  for (int i = layout.size(); i-- > 0;) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    if (spec.trained && layout.offset(i) + spec.shape.numel() <= end) names.push_back(spec.name);
  }
  if (names.empty()) return "what is finite of all parameters";
  return fmt::format("{}{} ({} of {} parameters), and what is finite of the others", names.front(),
                     names.size() > 1 ? " to " + names.back() : "", names.size(), layout.size());
}

void StepWindow::stop_training(const Issued& issued, StepResult& result) {
  // The steps issued after it have changed nothing.
  for (; !in_flight_.empty(); in_flight_.pop_front()) {
    replicas_.throw_if_failed(!wait_step_done(in_flight_.front()));
  }
  const bool by_update = result.overflow == "the update";
  if (!by_update) {
    replicas_.issue_or_recover([&] {
      // A layer such as ReLU may turn NaN into a number, so that NaN shows up in the gradient first.
      if (const std::string found = search_(issued); !found.empty()) result.overflow = found;
    });
  }
  for (auto& r : replicas_) r->scaler->resume(r->compute());
  progress_.skipped_in_row = 0;
  if (by_update && setup_.config.update_in_backward) {
    throw DivergedError(
        fmt::format("training has diverged: the gradient or the update of step {} is not finite for some parameters, "
                    "which keep their values. Backward has updated {}. To continue, lower the learning "
                    "rate, and start from a checkpoint of an earlier step",
                    issued.step + 1, updated_before_stop(issued.slot)));
  }
  const std::string what =
      by_update
          ? fmt::format("the update of step {} would make parameters infinite or NaN, and these keep their values",
                        issued.step + 1)
          : fmt::format(
                "the {} of step {} is not finite, first {}; the parameters are those of the step before",
                std::isfinite(result.loss_sum) ? "gradient" : "loss", issued.step + 1,
                result.overflow == "the loss" ? "the loss itself, whose logits are finite" : "in " + result.overflow);
  throw DivergedError(
      fmt::format("training has diverged: {}. To continue, {}", what, divergence_remedies(setup_.config)));
}

void StepWindow::throw_if_diverged(const StepResult& result) {
  int& skipped_in_row = progress_.skipped_in_row;
  skipped_in_row = result.skipped ? skipped_in_row + 1 : 0;
  if (!result.skipped) return;
  const LossScaling& scaling = setup_.config.precision.loss_scaling;
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
                  result.overflow, divergence_remedies(setup_.config)));
}

}  // namespace vitrine
