// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/measure.h"
#include "tools/program/tables.h"

namespace vitrine::tools {

/// "to the byte" where the measured peak and its categories are the planned ones, else the planned peak.
std::string describe_plan(const DeviceFigures& device);

/// Where the time went: a row for each phase, waits by their cause. Few devices have columns of their own; of many, those that are in the same phases
/// share a table with the least, median and longest time.
std::string phase_report(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables, const Style& style);

/// Where the memory went: a row for each category at the moment of the peak, two columns for each set of devices that agree; where most differ, the
/// least, median and most.
///   dataset_bytes  what the data set takes of the bytes outside the pools, in each process
std::string memory_report(const std::vector<DeviceFigures>& devices, int64_t dataset_bytes, const Style& style, int processes = 1);

}  // namespace vitrine::tools
