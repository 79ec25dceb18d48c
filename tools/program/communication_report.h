// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/communication_table.h"
#include "tools/program/tables.h"

namespace vitrine::tools {

/// A row for each bucket: its size, what of it ran beside compute, how late peers were, and its bandwidth. Of one device:
/// least_late(). Empty where nothing was communicated.
std::string communication_report(const std::vector<std::string>& devices, const std::vector<CommunicationTable>& tables, const Style& style);

}  // namespace vitrine::tools
