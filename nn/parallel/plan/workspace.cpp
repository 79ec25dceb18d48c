// SPDX-License-Identifier: Apache-2.0
// The workspace of a plan that is not given one.
#include <algorithm>
#include <limits>
#include <optional>

#include "nn/parallel/plan/plan.h"

namespace vitrine {
namespace {

bool on_gpus(const DeviceGroup& devices) { return devices.target().backend == Backend::cuda; }

int64_t most_allowed(const DeviceGroup& devices) {
  if (on_gpus(devices)) return std::numeric_limits<int64_t>::max() / 2;
  return devices.options().winograd ? kMostWinogradWorkspace : kMostCpuWorkspace;
}

int64_t at_least(const DeviceGroup& devices, const Reason& unknown) {
  if (!on_gpus(devices)) return unknown.empty() ? kLeastCpuWorkspace : kMostCpuWorkspace;
  return unknown.empty() ? kLeastGpuWorkspace : kUnaskedGpuWorkspace;
}

/// Bytes that the device with least room lacks; below 0 if the plans fit.
int64_t largest_lack(const std::vector<DevicePlan>& plans, const DeviceGroup& devices) {
  int64_t lack = std::numeric_limits<int64_t>::min();
  for (int d = 0; d < devices.size(); ++d)
    lack = std::max(lack, missing_bytes(plans[static_cast<size_t>(d)], devices[d]));
  return lack;
}

/// One device in place of those of all processes.
std::unique_ptr<DeviceGroup> one_device(const DeviceGroup& devices) {
  DeviceGroupOptions one;
  one.devices = {{Backend::meta, 0}};
  one.stand_for = {devices.target()};
  one.threads_per_device = {devices[0].thread_count()};
  one.tf32 = devices.options().tf32;
  one.winograd = devices.options().winograd;
  return std::make_unique<DeviceGroup>(one);
}

/// Meta devices that have recorded the workload's operations: in exact mode one with all leaves of the run, so that
/// every process gets the same workspace.
std::unique_ptr<DeviceGroup> recorded_twin(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                           const Workload& workload) {
  std::unique_ptr<DeviceGroup> twin = config.exact() ? one_device(devices) : devices.meta_twin();
  EngineConfig sized = config;
  sized.workspace_bytes = kLeastCpuWorkspace;  // nothing runs in it
  if (config.exact()) {
    sized.scheme = Scheme();
    sized.scheme.split.leaves = config.scheme.split.leaves;
  }
  run_on_meta(model, *twin, sized, workload, {});
  return twin;
}

/// What the workload would use of the workspace on the device that uses most, where `allowed_bytes` is the most.
WorkspaceNeed workspace_need(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                             const Workload& workload, int64_t allowed_bytes) {
  const std::unique_ptr<DeviceGroup> twin = recorded_twin(model, devices, config, workload);
  WorkspaceNeed all;
  for (int d = 0; d < twin->size(); ++d) {
    Device& device = (*twin)[d];
    const WorkspaceNeed need = vitrine::workspace_need(
        device.compute(),
        {device.target(), device.thread_count(), devices.options().tf32, config.workspace_record.get()}, allowed_bytes);
    all.best_bytes = std::max(all.best_bytes, need.best_bytes);
    all.least_bytes = std::max(all.least_bytes, need.least_bytes);
    for (const WorkspaceShortage& shortage : need.shortages) {
      if (std::ranges::find(all.shortages, shortage) == all.shortages.end()) all.shortages.push_back(shortage);
    }
    if (all.unknown.empty()) all.unknown = need.unknown;
  }
  return all;
}

}  // namespace

int64_t full_workspace_bytes(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                             const Workload& workload) {
  if (config.workspace_bytes) return *config.workspace_bytes;
  if (on_gpus(devices)) {
    // cuDNN would need seconds for the convolutions of all batches that a search tries.
    const std::unique_ptr<DeviceGroup> twin = recorded_twin(model, devices, config, workload);
    bool any = false;
    for (int d = 0; d < twin->size(); ++d) any = any || has_convolutions((*twin)[d].compute());
    return any ? kUnaskedGpuWorkspace : kLeastGpuWorkspace;
  }
  const WorkspaceNeed need = workspace_need(model, devices, config, workload, most_allowed(devices));
  return std::max(at_least(devices, need.unknown), need.best_bytes);
}

void record_workspaces(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                       const Workload& workload, WorkspaceRecord& record) {
  const std::unique_ptr<DeviceGroup> twin = recorded_twin(model, devices, config, workload);
  for (int d = 0; d < twin->size(); ++d) {
    Device& device = (*twin)[d];
    record_workspace(device.compute(), {device.target(), device.thread_count()}, most_allowed(devices), record);
  }
}

namespace {

/// The plan with the largest workspace that fits and is worth it; one of `shrinks` false has what the operations ask
/// for, whether it fits or not.
std::vector<DevicePlan> plan_within(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                    const Workload& workload, PlanDetail detail, bool shrinks) {
  const WorkspaceNeed full = workspace_need(model, devices, config, workload, most_allowed(devices));
  const int64_t least = at_least(devices, full.unknown);
  WorkspacePlan workspace;
  workspace.bytes = std::max(least, full.best_bytes);
  workspace.least_bytes = shrinks ? std::min(workspace.bytes, std::max(least, full.least_bytes)) : workspace.bytes;
  workspace.unknown = full.unknown;
  EngineConfig sized = config;
  std::vector<DevicePlan> plans;
  while (true) {
    sized.workspace_bytes = workspace.bytes;
    plans = plan_sized(model, devices, sized, workload, detail, false);
    const int64_t lack = largest_lack(plans, devices);
    if (lack <= 0 || workspace.bytes == workspace.least_bytes) break;
    const int64_t room = std::max(workspace.least_bytes, workspace.bytes - lack);
    const WorkspaceNeed within = workspace_need(model, devices, config, workload, room);
    workspace.bytes = std::clamp(within.best_bytes, workspace.least_bytes, room);
    workspace.unknown = within.unknown;
    workspace.shortages.clear();
    for (const WorkspaceShortage& shortage : within.shortages) {
      if (std::ranges::find(full.shortages, shortage) == full.shortages.end()) workspace.shortages.push_back(shortage);
    }
  }
  if (largest_lack(plans, devices) > 0) workspace.shortages.clear();  // it does not fit at all
  for (DevicePlan& plan : plans) plan.workspace = workspace;
  return plans;
}

}  // namespace

std::vector<DevicePlan> plan_with_workspace(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                            const Workload& workload, PlanDetail detail) {
  // In exact mode the memory of a device must not decide which algorithms run.
  return plan_within(model, devices, config, workload, detail, !config.exact());
}

std::optional<int64_t> fitting_workspace(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                         const Workload& workload) {
  const std::vector<DevicePlan> plans = plan_within(model, devices, config, workload, PlanDetail::peaks, true);
  if (largest_lack(plans, devices) > 0) return std::nullopt;
  return plans.front().workspace.bytes;
}

}  // namespace vitrine
