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

}  // namespace

std::vector<PlannedMovement> plan_movement(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                           const Workload& workload) {
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin();
  const CommunicationGroup group{config.scheme.reduce == Reduce::allreduce};
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

}  // namespace vitrine
