// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/plan/memory_plan.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/trace/communication_table.h>

namespace vitrine {

/// What a device moves in a steady step of the full batch, as a run would measure it: one step, whose times are 0.
struct PlannedMovement {
  PhaseTable phases;
  CommunicationTable communication;
};

/// Plans it for each device of this process.   requires  EngineConfig::workspace_bytes, as the memory plan sized it
/// throws  ConfigError, ShapeError
std::vector<PlannedMovement> plan_movement(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                           const Workload& workload);

/// What collectives move through the link of the busiest device.
int64_t most_moved(const std::vector<PlannedMovement>& devices);

/// What a step costs in exact mode, beside the same step without it. Each figure is the largest among the devices.
struct ExactPrice {
  int64_t sent_bytes = 0, ordinary_sent_bytes = 0;  // to reduce gradients, totals and batch statistics
  int64_t peak_bytes = 0, ordinary_peak_bytes = 0;
};

/// The larger of each figure.
ExactPrice most_of(const ExactPrice& a, const ExactPrice& b);

/// plans  of the configuration, which is exact      throws  ConfigError, ShapeError
ExactPrice plan_exact_price(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                            const Workload& workload, const std::vector<DevicePlan>& plans);

}  // namespace vitrine
