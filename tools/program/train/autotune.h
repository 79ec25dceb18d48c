// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tools/program/checkpoint/resume.h"
#include "tools/program/flags/options.h"
#include "tools/program/record/record.h"
#include "tools/program/run/processes.h"

/// --autotune: plans of cuDNN and cuBLASLt that are timed before the first step, and kept.
namespace vitrine::tools {

/// throws  ConfigError for CPU devices, which have nothing to time
void check_autotune(const Options& options, const std::vector<DeviceId>& devices);

/// The configuration of the engine. On rank 0 its known plans come from the checkpoint that --resume names or, without
/// them, from the file.
/// throws  DataError: the file is not one of --autotune
Autotune resolve_autotune(const Options& options, const Processes& processes);

/// Warns about known plans that are not in use, also about plans of the checkpoint, prints what was timed on stderr,
/// and writes the file if its plans are not those in use. Only rank 0 does. throws  DataError: the file cannot be
/// written
void conclude_autotune(const Options& options, const Engine& engine, const std::optional<Resumed>& resumed,
                       const Processes& processes);

}  // namespace vitrine::tools
