// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
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

/// --split auto --balance time: measures on a few steps how long each device takes for its slice, as fixed + each *
/// samples, and shares the batch so that all are done at the same time. Steps are measured again after each change; a
/// change is made only if it is predicted to shorten the step by more than kLeastGain, and the split that was measured
/// fastest stays. The notes report each one. The measured steps train nothing: parameters start again from their
/// initial values. `devices` are returned unchanged. throws ConfigError if timings are off, and what Engine throws.
void balance_by_time(Chosen& chosen, const Job& job, std::unique_ptr<DeviceGroup>& devices);

inline constexpr double kLeastGain = 0.05;

}  // namespace vitrine::tools
