// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/recompute_search.h"

#include <algorithm>
#include <utility>

#include "nn/parallel/engine_setup.h"
#include "nn/segments.h"
#include "runtime/error.h"
#include "runtime/memory/offset_allocator.h"

namespace vitrine {
namespace {

/// Shares statistics with no device: layers then allocate what they allocate in a group.
class NoSum final : public BatchSum {
 public:
  void sum(ExecContext& /*ctx*/, const View& /*values*/) override {}
};

bool is_backward(Phase phase) { return phase == Phase::backward || phase == Phase::recompute; }
bool is_between(Phase phase) { return phase == Phase::gather || phase == Phase::loss || phase == Phase::scatter_grad; }

/// Sums of a device's blocks in the first micro-batch of a recorded step.
struct StepSums {
  int64_t input = 0;            // the model's input, if it has memory of its own
  int64_t gathered = 0;         // the outputs of all devices
  int64_t before_forward = 0;   // without the input
  int64_t loss = 0;             // the largest from the end of forward to the beginning of backward
  int64_t before_backward = 0;  // before its first allocation
  bool backward_allocates = false;
  int64_t other = 0;  // the largest in all other phases
};

StepSums sums_of(const MemoryHistory& history) {
  StepSums sums;
  int64_t live = 0;
  for (const MemoryEvent& block : history.at_start) live += block.bytes;
  enum class Stage { before, forward, between, backward, after } stage = Stage::before;
  const size_t begin = history.steps.empty() ? 0 : history.steps.back().change;
  for (size_t i = 0; i < history.changes.size(); ++i) {
    const MemoryEvent& change = history.changes[i];
    const bool forward = change.phase == Phase::forward, backward = is_backward(change.phase),
               between = is_between(change.phase);
    const int64_t before = live;
    live += change.bytes;
    if (!forward && !backward && !between) sums.other = std::max(sums.other, live);
    if (i < begin) continue;
    if (stage == Stage::before && change.phase == Phase::preprocess) sums.input += change.bytes;
    if (stage == Stage::before && forward) {
      sums.before_forward = before - sums.input;
      stage = Stage::forward;
    }
    if (stage == Stage::forward && forward) {
      if (change.bytes > 0 && change.tensor == "gathered outputs") sums.gathered += change.bytes;
      sums.loss = live;
      continue;
    }
    if (stage == Stage::forward && (between || backward)) stage = Stage::between;
    if (stage == Stage::between && between) sums.loss = std::max(sums.loss, live);
    if (stage == Stage::between && backward) stage = Stage::backward;
    if (stage != Stage::backward) continue;
    if (!backward) {
      stage = Stage::after;
    } else if (change.bytes > 0 && !sums.backward_allocates) {
      sums.before_backward = before;
      sums.backward_allocates = true;
    }
  }
  return sums;
}

RecomputationModel model_of(const Model& model, const EngineConfig& config, const DeviceGroup& devices, int64_t samples,
                            const DevicePlan& plan) {
  NoSum no_sum;
  Pass pass;
  pass.input_form = input_form(model, devices, config);
  if (devices.world_size() > 1 && config.batch_statistics == BatchStatistics::exact) pass.batch_sum = &no_sum;
  RecomputationModel parts;
  parts.parts = measure_parts(*model.net, model.input_shape(samples), config.precision.compute, pass);
  const StepSums sums = sums_of(plan.history);
  parts.base = sums.before_forward;
  parts.gathered = sums.gathered;
  parts.other = sums.other;
  parts.input_is_held = sums.input == 0;
  if (parts.parts.empty()) return parts;
  if (sums.gathered > 0) {
    // The last part writes into the gathered outputs.
    parts.parts.back().output = 0;
    parts.parts.back().in_place = false;
  }
  const KeptBytes kept = kept_after_forward(parts, {});
  parts.loss = sums.loss - kept.with_output;
  if (sums.backward_allocates) set_gradients(parts.parts, sums.before_backward - sums.before_forward - kept.parts);
  return parts;
}

PlanSearch with_nothing_recomputed(const PlanSearch& search) {
  EngineConfig config = search.config();
  config.recompute_segments = 1;
  config.recompute.clear();
  return search.with(std::move(config));
}

}  // namespace

RecomputeSearch::RecomputeSearch(const PlanSearch& search) : search_(with_nothing_recomputed(search)) {
  if (!search_.trains()) throw ConfigError("recompute: an engine that only evaluates recomputes nothing; leave it out");
  const EngineConfig& config = search_.config();
  const PlannedDevices& devices = search_.planned();
  const std::vector<DevicePlan> plans = devices.plan(search_.model(), config, search_.workload(), PlanDetail::layers);
  const BatchPlan batch =
      plan_batch(config.scheme.split, config.batch_size, config.accumulate, search_.devices().world_size());
  const auto samples = [&](int d) { return batch.sizes[0][static_cast<size_t>(devices.rank(d))]; };
  const auto headroom = [&](int d) {
    return devices[d].pool().capacity_bytes() - plans[static_cast<size_t>(d)].peak_bytes;
  };
  for (int d = 0; d < devices.size(); ++d) {
    if (samples(d) > 0 && (samples(device_) == 0 || headroom(d) < headroom(device_))) device_ = d;
  }
  parts_ = model_of(search_.model(), config, search_.devices(), std::max<int64_t>(1, samples(device_)),
                    plans[static_cast<size_t>(device_)]);
}

int64_t RecomputeSearch::capacity_bytes() const { return search_.planned()[device_].pool().capacity_bytes(); }

RecomputePoint RecomputeSearch::planned(const RecomputationChoice& choice) const {
  EngineConfig config = search_.config();
  config.recompute = name_segments(*search_.model().net, choice.recomputed);
  RecomputePoint point;
  point.recompute = config.recompute;
  point.modeled_bytes = choice.peak_bytes;
  point.fit = search_.plan(config);
  for (const DevicePlan& plan : point.fit.plans) point.peak_bytes = std::max(point.peak_bytes, plan.peak_bytes);
  int64_t forward = 0;
  for (const PartCost& part : parts_.parts) forward += part.work;
  point.added_time = forward > 0 ? static_cast<double>(choice.work) / (3.0 * static_cast<double>(forward)) : 0.0;
  return point;
}

std::vector<RecomputePoint> RecomputeSearch::frontier(int count) const {
  std::vector<RecomputePoint> points;
  // The two ends first: the steps between them are equal.
  const std::vector<RecomputationChoice> ends = recomputation_frontier(parts_, peak_of(parts_, {}));
  const int64_t range = ends.empty() ? 0 : peak_of(parts_, {}) - ends.back().peak_bytes;
  for (const RecomputationChoice& choice : recomputation_frontier(parts_, range / std::max(1, count)))
    points.push_back(planned(choice));
  if (capacity_bytes() != DeviceGroup::kUnlimitedBytes) {
    if (std::optional<RecomputePoint> cheapest = cheapest_that_fits()) points.push_back(std::move(*cheapest));
  }
  // What the plans show to be no better than a choice with less time is dropped.
  std::stable_sort(points.begin(), points.end(), [](const RecomputePoint& a, const RecomputePoint& b) {
    return a.added_time != b.added_time ? a.added_time < b.added_time : a.peak_bytes < b.peak_bytes;
  });
  std::optional<int64_t> lowest;
  std::erase_if(points, [&](const RecomputePoint& point) {
    if (lowest && point.peak_bytes >= *lowest) return true;
    lowest = point.peak_bytes;
    return false;
  });
  return points;
}

std::optional<RecomputePoint> RecomputeSearch::cheapest_that_fits() const {
  int64_t limit = capacity_bytes(), step = OffsetAllocator::kAlignment;
  while (const std::optional<RecomputationChoice> choice = cheapest_recomputation(parts_, limit)) {
    RecomputePoint point = planned(*choice);
    if (point.fit.fits()) return point;
    // Something that the model does not know needs room too.
    step = std::max(2 * step, -point.fit.tightest());
    limit = std::min(limit, choice->peak_bytes) - step;
  }
  return std::nullopt;
}

}  // namespace vitrine
