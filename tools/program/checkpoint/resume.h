// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tools/program/checkpoint/run_settings.h"
#include "tools/program/checkpoint/run_state.h"
#include "tools/program/process/processes.h"

namespace vitrine::tools {

/// Where a run continues.
struct Resumed {
  std::string folder;
  RunState state;
};

/// The tuned plans in the checkpoint that --resume will choose; nothing without --resume, or where no checkpoint or no
/// plans are.
std::optional<TunedPlans> stored_plans(const Options& options);

/// Brings the engines of all processes to the state of the checkpoint that --resume names, as rank 0 reads it, and
/// reports on stderr where the run continues and which settings differ. Nothing without --resume, or with `auto` where
/// there is no checkpoint yet. Every process calls it. throws  DataError: no checkpoint is whole, or --checkpoint-dir
/// has newer ones or belongs to another run; ConfigError: settings that change results
///         differ; CommError
std::optional<Resumed> resume_run(const Options& options, const Job& job, Run& run, const Processes& processes);

}  // namespace vitrine::tools
