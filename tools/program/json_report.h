// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tools/program/measure.h"

namespace vitrine::tools {

using Json = nlohmann::ordered_json;

/// Precision, loss scale, and what device 0 broadcasts.
Json precision_json(const Precision& precision);
/// The options as they were resolved, with the scheme's axes; of several precisions (compare) their names.
///   world_size  devices of all processes, where there are several
Json config_json(const Options& options, const Job& job, const std::vector<DeviceId>& devices, std::optional<int> world_size = {});
/// The axes of a scheme: split, staging, loss_at, reduce, output_device.
Json scheme_json(const Scheme& scheme, const std::vector<DeviceId>& devices);
Json devices_json(const std::vector<DeviceFigures>& devices);
/// Seconds, bytes and calls over all steps of the tables.
Json phases_json(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables);
Json waits_json(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables);
/// Seconds and calls over all steps, bytes of the buffer in one; algbw and busbw in GB/s, null where there is none.
Json communication_json(const std::vector<std::string>& devices, const std::vector<CommunicationTable>& tables);

/// One line on stdout. NaN becomes null.
void print_json(const Json& json);

}  // namespace vitrine::tools
