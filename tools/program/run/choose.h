// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/device.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

/// What the program chose for the user, and why.
struct Chosen {
  Options options;                 // with numbers in place of max and auto
  std::vector<std::string> notes;  // the arithmetic, for the user to read
};

/// Finds with plans what Options::choices leaves open, so that the run fits the memory of `devices` (real ones, or
/// DeviceGroup::planned()). throws ConfigError with several processes; OutOfMemory, with what was tried, if nothing
/// fits.
Chosen choose_by_plan(const Options& options, const Job& job, DeviceGroup& devices);

}  // namespace vitrine::tools
