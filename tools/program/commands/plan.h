// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/program/flags/options.h"
#include "tools/program/record/record.h"

namespace vitrine::tools {

/// What `vitrine plan` reports of these options.
///   finds_remedies  search for what would fit if the plan does not: many plans
/// throws Error, SearchStopped.
PlanRecord plan_record(const Options& options, bool finds_remedies = true);

}  // namespace vitrine::tools
