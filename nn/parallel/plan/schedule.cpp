// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/schedule.h"

#include <memory>

#include "nn/parallel/plan/plan.h"
#include "runtime/order_checker.h"
#include "runtime/schedule_writer.h"

namespace vitrine {

void write_schedule(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                    const Workload& workload, const std::vector<DevicePlan>& plans, std::ostream& out) {
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin();
  ScheduleWriter writer(*twin, out);
  twin->checker()->mute();  // what is wrong is for the reader of the schedule to find
  EngineConfig planned = config;
  planned.workspace_bytes = plans.front().workspace.bytes;
  for (int i = 0; i < twin->size(); ++i) {
    const DevicePlan& plan = plans[static_cast<size_t>(i)];
    (*twin)[i].pool().reserve(plan.peak_bytes);
    (*twin)[i].pool().follow(plan.placement);
  }
  run_on_meta(model, *twin, planned, workload, {});
  for (int i = 0; i < twin->size(); ++i) writer.state_peak(i, plans[static_cast<size_t>(i)].peak_bytes);
}

}  // namespace vitrine
