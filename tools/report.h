// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/measure.h"
#include "tools/tables.h"

namespace vitrine::tools {

/// "to the byte" where the measured peak and its categories are the planned ones, else the planned peak.
std::string describe_plan(const DeviceFigures& device);

/// Where the time went: a row for each phase, two columns for each device, waits by their cause.
std::string phase_report(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables, const Style& style);

/// Where the memory went: a row for each category at the moment of the peak, a column for each device.
///   dataset_bytes  what the data set takes of the bytes outside the pools, in each process
std::string memory_report(const std::vector<DeviceFigures>& devices, int64_t dataset_bytes, const Style& style, int processes = 1);

}  // namespace vitrine::tools
