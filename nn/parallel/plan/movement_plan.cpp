// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/movement_plan.h"

#include <algorithm>

#include "nn/parallel/plan/plan.h"
#include "runtime/meta/stream.h"

namespace vitrine {
namespace {

/// Meta devices have no times.
void clear_times(PlannedMovement& movement) {
  movement.phases.wall_seconds = movement.phases.leaf_seconds = 0;
  movement.phases.waits.clear();
  std::erase_if(movement.phases.rows, [](const PhaseRow& row) { return row.phase == Phase::wait; });
  for (PhaseRow& row : movement.phases.rows) row.seconds = row.share = row.hidden_seconds = 0;
  for (CommunicationRow& row : movement.communication.rows)
    row.hidden_seconds = row.exposed_seconds = row.late_hidden_seconds = row.late_exposed_seconds = 0;
}

int64_t largest_peak(const std::vector<DevicePlan>& plans) {
  const auto less = [](const DevicePlan& a, const DevicePlan& b) { return a.peak_bytes < b.peak_bytes; };
  return std::max_element(plans.begin(), plans.end(), less)->peak_bytes;
}

/// The most that a device moves in the reductions of a step.
int64_t reduced_bytes(const Model& model, const DeviceGroup& devices, EngineConfig config, const Workload& workload,
                      const std::vector<DevicePlan>& plans) {
  config.workspace_bytes = plans.front().workspace.bytes;
  int64_t most = 0;
  for (const PlannedMovement& moved : plan_movement(model, devices, config, workload)) {
    int64_t bytes = 0;
    for (const CommunicationRow& row : moved.communication.rows)
      bytes += row.phase == Phase::reduce ? row.moved_bytes : 0;
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace

std::vector<PlannedMovement> plan_movement(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                           const Workload& workload) {
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin();
  const CommunicationGroup group{config.scheme.reduce == ReducerKind::allreduce};
  const auto take = [](ExecContext& ctx) { return static_cast<MetaStream&>(ctx.stream()).take_spans(); };
  for (int d = 0; d < twin->size(); ++d) {
    Device& device = (*twin)[d];
    for (ExecContext* const ctx : {&device.compute(), &device.copy(), &device.communication()})
      static_cast<MetaStream&>(ctx->stream()).keep_spans();
  }
  constexpr int64_t kSteadyStep = 1;
  std::vector<PlannedMovement> all;
  int64_t steps = 0;
  // The names in spans are the engine's.
  run_on_meta(model, *twin, config, {{workload.train_batches.front()}, {}}, [&] {
    if (steps++ <= kSteadyStep) return;
    for (int d = 0; d < twin->size(); ++d) {
      Device& device = (*twin)[d];
      device.compute().mark_step();  // ends the step
      const DeviceSpans spans{d, take(device.compute()), take(device.copy()), take(device.communication()), {}};
      const StepRange steady{kSteadyStep, kSteadyStep};
      all.push_back({make_phase_table(spans, steady), make_communication_table(spans, group, steady)});
      clear_times(all.back());
    }
  });
  return all;
}

int64_t most_moved(const std::vector<PlannedMovement>& devices) {
  int64_t most = 0;
  for (const PlannedMovement& device : devices) most = std::max(most, device.communication.total().moved_bytes);
  return most;
}

ExactPrice most_of(const ExactPrice& a, const ExactPrice& b) {
  return {std::max(a.sent_bytes, b.sent_bytes), std::max(a.ordinary_sent_bytes, b.ordinary_sent_bytes),
          std::max(a.peak_bytes, b.peak_bytes), std::max(a.ordinary_peak_bytes, b.ordinary_peak_bytes)};
}

ExactPrice plan_exact_price(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                            const Workload& workload, const std::vector<DevicePlan>& plans) {
  EngineConfig ordinary = config;
  ordinary.scheme.split.leaves = ordinary.batch_norm_leaves = 0;
  const std::vector<DevicePlan> of_ordinary = plan_memory(model, devices, ordinary, workload);
  return {reduced_bytes(model, devices, config, workload, plans),
          reduced_bytes(model, devices, ordinary, workload, of_ordinary), largest_peak(plans),
          largest_peak(of_ordinary)};
}

}  // namespace vitrine
