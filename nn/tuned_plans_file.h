// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <vitrine/kernels/tuned_plans.h>

namespace vitrine {

/// The plans as a JSON object: "format", "device", "libraries", "workspace_bytes", "tf32", and "plans", each with
/// "operation", "plan", "us" (median of its times), "library_us" (of the library's own choice) and "candidates".
/// parse_tuned_plans() gives equal plans back.
///   indent  -1: one line
std::string tuned_plans_json(const TunedPlans& plans, int indent = -1);
/// source  for messages: the file      throws  DataError naming the source if the text is not what tuned_plans_json()
///         writes
TunedPlans parse_tuned_plans(const std::string& source, const std::string& json);

}  // namespace vitrine
