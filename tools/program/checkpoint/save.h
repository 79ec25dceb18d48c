// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/engine.h"
#include "tools/program/flags/options.h"
#include "tools/program/run/processes.h"

namespace vitrine::tools {

/// Writes the engine's parameters to --save, if given, on rank 0. Every process calls it: while rank 0 writes, it
/// reports its progress to the others, which wait as long as that takes. With several processes a child process writes,
/// and continues if this one is killed. throws DataError, CommError.
void save_weights(const Options& options, const std::string& model, Engine& engine, const Processes& processes);

/// After an error in training: saves what the devices still hold, on rank 0 alone, and reports it on stderr.
void rescue_weights(const Options& options, const std::string& model, Engine& engine,
                    const Processes& processes) noexcept;

}  // namespace vitrine::tools
