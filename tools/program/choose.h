// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/device.h"
#include "tools/program/run.h"

namespace vitrine::tools {

/// What the program chose in the user's place, and why.
struct Chosen {
  Options options;                 // with numbers where there was max or auto
  std::vector<std::string> notes;  // the arithmetic, for the user to read
};

/// Finds by plans what Options::choices leaves open, so that it fits the memory of `devices` (real ones, or DeviceGroup::planned()).
/// throws ConfigError with several processes, OutOfMemory saying what was tried when nothing fits.
Chosen choose_by_plan(const Options& options, const Job& job, DeviceGroup& devices);

}  // namespace vitrine::tools
