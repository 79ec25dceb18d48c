// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/program/flags/options.h"
#include "tools/program/process/processes.h"

namespace vitrine::tools {

struct PlanRecord;

/// The subcommands: each prints its results on stdout and returns the exit status. throws Error.
int run_train(const Options& options, const Processes& processes);
int run_eval(const Options& options, const Processes& processes);
int run_compare(const Options& options);
int run_plan(const Options& options);
/// What `vitrine plan` reports of these options.
///   finds_remedies  search for what would fit if the plan does not: many plans
/// throws Error, SearchStopped.
PlanRecord plan_record(const Options& options, bool finds_remedies = true);
int run_collectives(const Options& options, const Processes& processes);
int run_lab(const Options& options);
int run_sample(const Options& options);
int run_info(const Options& options);
int run_verify(const Options& options);
int run_page(const Options& options);
/// Runs the arguments after the program's name as a command of its own, and returns its exit status.
using RunArguments = std::function<int(const std::vector<std::string>&)>;
int run_lesson(const Options& options, const RunArguments& run_arguments);

}  // namespace vitrine::tools
