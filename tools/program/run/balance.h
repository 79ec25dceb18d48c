// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tools/program/run/choose.h"

namespace vitrine::tools {

/// --split auto --balance time: measures on a few steps how long each device takes for its slice, as fixed + each *
/// samples, and shares the batch so that all are done at the same time. Steps are measured again after each change; a
/// change is made only if it is predicted to shorten the step by more than kLeastGain, and the split that was measured
/// fastest stays. The notes report each one. The measured steps train nothing: parameters start again from their
/// initial values. `devices` are returned unchanged. throws ConfigError if timings are off, and what Engine throws.
void balance_by_time(Chosen& chosen, const Job& job, std::unique_ptr<DeviceGroup>& devices);

inline constexpr double kLeastGain = 0.05;

}  // namespace vitrine::tools
