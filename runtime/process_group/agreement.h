// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <vitrine/runtime/process_group/process_group.h>

namespace vitrine {

/// Values that must be equal on all processes: names and values, in the same order everywhere.
using AgreementFields = std::vector<std::pair<std::string, std::string>>;

/// Compares the fields of all processes; if their hashes are equal, only the hashes are sent. On a difference, closes
/// the process group and throws ConfigError on all processes, naming the ranks that differ from the majority, the
/// field, and both values.
void require_agreement(ProcessGroup& process_group, const std::string& what, const AgreementFields& fields);

/// Describes how the fields of the ranks differ (fields[r] for rank r), worded for the error; empty if all are equal.
std::string describe_disagreement(const std::vector<AgreementFields>& fields);

}  // namespace vitrine
