// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/program/record/record.h"

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
