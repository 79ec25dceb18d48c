// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/program/record/record.h"
#include "tools/program/text/terminal.h"

/// A record as the JSON object that --json prints. docs/json.md describes the keys.
namespace vitrine::tools {

Json run_json(const TrainingRecord& record);
Json comparison_json(const ComparisonRecord& record, const std::vector<DeviceId>& devices);
Json plan_json(const PlanRecord& record);

Json devices_json(const std::vector<DeviceRecord>& devices);
/// Seconds, bytes and calls are sums over all steps.
Json phases_json(const std::vector<DeviceRecord>& devices);
Json waits_json(const std::vector<DeviceRecord>& devices);
/// Seconds and calls are sums over all steps, bytes those of one step; algbw and busbw are in GB/s, null if there is
/// none.
Json communication_json(const std::vector<DeviceRecord>& devices);

/// Prints one line on stdout. NaN becomes null.
void print_json(const Json& json);

}  // namespace vitrine::tools

/// A record as text for the terminal.
namespace vitrine::tools {

/// Speed, the fullest device and the longest wait of a run, a line each; with `details` its tables of time,
/// communication and memory; loss scale, convolutions and the like.
std::string run_report(const TrainingRecord& record, bool details, const Style& style);
/// Schemes side by side. Empty without runs.
std::string comparison_report(const ComparisonRecord& record, const Style& style);
/// What each device needs, as tables and bars, and what each layer holds.
std::string plan_report(const PlanRecord& record, const Style& style);

/// memory_table() and what lies outside the pools.
std::string memory_report(const std::vector<DeviceRecord>& devices, int processes, const Style& style);

}  // namespace vitrine::tools
