// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <vitrine/runtime/process_group/process_group.h>

namespace vitrine {

/// What has to be the same on all processes: name and value, in any order that is the same.
using AgreementFields = std::vector<std::pair<std::string, std::string>>;

/// Compares the fields of all processes; where hashes of them are equal, nothing else travels. Closes the process group and throws ConfigError, on
/// all of them, naming the ranks that differ from most others, the field, and both values.
void require_agreement(ProcessGroup& process_group, const std::string& what, const AgreementFields& fields);

/// What is wrong when rank r has fields[r], worded for the error; empty when all agree.
std::string describe_disagreement(const std::vector<AgreementFields>& fields);

}  // namespace vitrine
