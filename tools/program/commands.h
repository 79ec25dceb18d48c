// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/program/options.h"
#include "tools/program/processes.h"

namespace vitrine::tools {

/// The subcommands: each prints its results on stdout and returns the exit status. throws Error.
int run_train(const Options& options, const Processes& processes);
int run_eval(const Options& options, const Processes& processes);
int run_compare(const Options& options);
int run_reproduce(const Options& options, const Processes& processes);
int run_plan(const Options& options);
int run_collectives(const Options& options, const Processes& processes);
int run_lab(const Options& options);
int run_info(const Options& options);

}  // namespace vitrine::tools
