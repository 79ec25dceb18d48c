// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

/// Steps that a measurement runs to choose, after those that warm up.
inline constexpr int64_t kWarmSteps = 2, kMeasuredSteps = 5;

/// What the program chose for the user, and why.
struct Chosen {
  Options options;                 // with numbers in place of max and auto
  std::vector<std::string> notes;  // the arithmetic, for the user to read
};

/// throws ConfigError, with what was `asked` for, if the capacity of a device is not known.
void require_capacities(const std::string& asked, DeviceGroup& devices);

/// Finds with plans what Options::choices leaves open, so that the run fits the memory of `devices` (real ones, or
/// DeviceGroup::planned()). throws ConfigError with several processes; OutOfMemory, with what was tried, if nothing
/// fits.
Chosen choose_by_plan(const Options& options, const Job& job, DeviceGroup& devices);

/// --mode auto: the preset that fits and takes the least time, by measured steps; or that moves the fewest bytes,
/// without `devices`, on one device, or if no step has a full batch. The measured steps train nothing. Without --mode
/// auto returns the options unchanged. throws ConfigError with several processes; OutOfMemory if no mode fits.
///   planned  the devices, or DeviceGroup::planned()     devices  null, or owns `planned`; returned unchanged
Chosen choose_mode(const Options& options, const Job& job, DeviceGroup& planned,
                   std::unique_ptr<DeviceGroup>* devices = nullptr);

/// --split auto --balance time: measures on a few steps how long each device takes for its slice, as fixed + each *
/// samples, and shares the batch so that all are done at the same time. Steps are measured again after each change; a
/// change is made only if it is predicted to shorten the step by more than kLeastGain, and the split that was measured
/// fastest stays. The notes report each one. The measured steps train nothing: parameters start again from their
/// initial values. `devices` are returned unchanged. throws ConfigError if timings are off, and what Engine throws.
void balance_by_time(Chosen& chosen, const Job& job, std::unique_ptr<DeviceGroup>& devices);

inline constexpr double kLeastGain = 0.05;

}  // namespace vitrine::tools
