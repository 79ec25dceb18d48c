// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// "AMD EPYC 7763 64-Core Processor", or "unknown".
std::string processor_name();
/// The name of this machine, or "unknown".
std::string host_name();
/// The local time: "2026-11-22 10:33 CET".
std::string local_time();

}  // namespace vitrine::tools
