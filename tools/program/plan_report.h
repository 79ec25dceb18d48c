// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/parallel/engine.h"
#include "tools/program/tables.h"

namespace vitrine::tools {

/// What a device will need.
struct PlannedDevice {
  std::string name;
  int64_t samples_per_step = 0;
  std::optional<int64_t> capacity_bytes;  // none: not known, the device is not there
  DevicePlan plan;

  bool fits() const { return !capacity_bytes || plan.peak_bytes <= *capacity_bytes; }
};

/// For people: bytes by category, device by device, with the moment of the peak; the same as bars; what each layer holds for backward. Devices with
/// the same plan are told together ("cpu:1 to cpu:3").
std::string plan_report(const std::vector<PlannedDevice>& devices, const Style& style);

}  // namespace vitrine::tools
