// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/trace/phase_table.h"

namespace vitrine::tools {

/// Writes spans and memory history of the devices as a Chrome trace. throws DataError.
void write_trace_file(const std::string& path, DeviceGroup& devices, const std::vector<DeviceSpans>& spans);

}  // namespace vitrine::tools
