// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tools/program/flags/options.h"

/// Former names of options and their values. They still work, are hidden from the help, and print a warning with the
/// new name.
namespace vitrine::tools {

/// --init had two meanings, distinguished by the form of its value: --rendezvous and, with `has_weights`,
/// --init-weights.
void add_deprecated_init(CLI::App& app, Options& options, bool has_weights);

/// --checkpoint-segments and, if plans may choose, --checkpoint: --recompute-segments.
/// requires  add_recompute_options() was called before
void add_deprecated_recompute(CLI::App& app, Options& options, bool may_choose);

/// Returns the current name of a value of --broadcast: half was formerly called shadow.
std::string current_broadcast(Options& options, const std::string& value);

}  // namespace vitrine::tools
