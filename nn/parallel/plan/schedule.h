// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <vector>

#include <vitrine/nn/parallel/plan/memory_plan.h>

namespace vitrine {

/// Writes what the engine issues for the workload, with each block where the plans place it, for tools/check_schedule
/// (docs/schedule.md). throws ConfigError if `devices` have no order checker (DeviceGroupOptions::check_order).
void write_schedule(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                    const Workload& workload, const std::vector<DevicePlan>& plans, std::ostream& out);

}  // namespace vitrine
