// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/step_view.h"

namespace vitrine::tools::html {

/// What the streams of a device did in one step.
struct DeviceStep {
  std::string device;
  StepView view;
};

/// The step on a common axis of time: a lane for each stream of each device, spans in spans, waits hatched, and the host's waits for data. Empty
/// without devices.
std::string step_chart(const std::vector<DeviceStep>& devices);

}  // namespace vitrine::tools::html
