// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tools/program/choose.h"

namespace vitrine::tools {

/// --split auto --balance time: measures on a few steps how long each device takes for its slice, as fixed + each * samples, and shares the batch so
/// that all are done at the same time. Steps are measured again after each change; a change is made only where it promises to shorten the step by
/// more than kLeastGain, and the split that was measured fastest stays. Each is told in the notes. The steps measured train nothing: parameters start
/// anew. `devices` come back as they were. throws ConfigError where timings are off, and what Engine throws.
void balance_by_time(Chosen& chosen, const Job& job, std::unique_ptr<DeviceGroup>& devices);

inline constexpr double kLeastGain = 0.05;

}  // namespace vitrine::tools
