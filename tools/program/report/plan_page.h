// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/report/memory_chart.h"
#include "tools/program/report/page.h"
#include "tools/program/report/train_report.h"

namespace vitrine::tools {

/// What a plan's page shows of a device.
struct PlannedMemory {
  std::string device;
  DevicePlan plan;             // with PlanDetail::layers
  int64_t capacity_bytes = 0;  // 0: not known
};

/// All that a plan's page shows.
struct PlanReport {
  std::string title;
  std::string command_line;
  Facts facts;
  std::string remedies;  // what would make it fit; empty where it fits
  std::vector<PlannedMemory> devices;
};

html::Page plan_page(const PlanReport& report);

}  // namespace vitrine::tools
