// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/workload.h>
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

}  // namespace vitrine
