// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/trace/communication_table.h"
#include "tools/program/measure.h"
#include "tools/program/processes.h"

namespace vitrine::tools {

/// What was measured on devices.
struct Measurements {
  std::vector<DeviceFigures> figures;
  std::vector<PhaseTable> tables;
  std::vector<CommunicationTable> communication;
};

/// What was measured on the devices of all processes, in rank order; devices are then called "rank 1 cpu:0". All processes call it; alone it is
/// `mine`.
Measurements gather_measurements(const Processes& processes, Measurements mine);

}  // namespace vitrine::tools
