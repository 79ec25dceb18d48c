// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/measure.h"
#include "tools/program/report/bars.h"
#include "tools/program/report/findings.h"

/// Parts that pages of several kinds have in common. All return HTML.
namespace vitrine::tools::html {

/// The findings with their remedies, or that there are none.
std::string findings_section(const std::vector<Finding>& findings);

/// A bar of what a device held at its peak, by category.
Bar memory_bar(const std::string& label, const BytesByCategory& peak);

/// Planned and measured peaks beside each other, category by category, and what lies outside the pools.
///   outside  says what that is
std::string memory_section(const std::vector<DeviceFigures>& figures, const std::string& outside);

/// A bar of a device's step, phase by phase; waits are hatched.
Bar time_bar(const std::string& label, const PhaseTable& table);

/// The phases' colours, and one for all waits.
std::string time_legend(const std::vector<Bar>& bars);
/// A row for each phase, waits by what they waited for, and what was hidden.
std::string time_tables(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables);

/// Where the time of a step went on each device: exclusive, waits by what they waited for.
std::string time_section(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables);

/// What communication was hidden and what exposed, bucket by bucket. Empty where nothing was communicated.
std::string communication_section(const std::vector<std::string>& devices, const std::vector<CommunicationTable>& tables);

}  // namespace vitrine::tools::html
