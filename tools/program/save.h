// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/engine.h"
#include "tools/program/options.h"
#include "tools/program/processes.h"

namespace vitrine::tools {

/// Writes the engine's parameters to --save, if it is given, on rank 0. All processes call it: while rank 0 writes, it reports its progress to the
/// others, who wait as long as that takes. With several processes a child process writes, which goes on when this one is ended in the meantime.
/// throws DataError, CommError.
void save_weights(const Options& options, const std::string& model, Engine& engine, const Processes& processes);

/// After an error in training: the same, on rank 0 alone, of what the devices still hold, and reported on stderr.
void rescue_weights(const Options& options, const std::string& model, Engine& engine, const Processes& processes) noexcept;

}  // namespace vitrine::tools
