// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/exact_price.h"

#include <algorithm>

#include "nn/parallel/plan/movement_plan.h"

namespace vitrine {
namespace {

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
