// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/program/record/record.h"
#include "tools/program/text/terminal.h"

/// A record as text for the terminal.
namespace vitrine::tools {

/// Time, communication, memory, loss scale and convolutions of a run.
std::string run_report(const TrainingRecord& record, const Style& style);
/// Schemes side by side. Empty without runs.
std::string comparison_report(const ComparisonRecord& record, const Style& style);
/// What each device needs, as tables and bars, and what each layer holds.
std::string plan_report(const PlanRecord& record, const Style& style);

/// memory_table() and what lies outside the pools.
std::string memory_report(const std::vector<DeviceRecord>& devices, int processes, const Style& style);

}  // namespace vitrine::tools
