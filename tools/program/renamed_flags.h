// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "tools/program/options.h"

/// Former names of options. They still work, are hidden from the help, and print a warning with the new name.
namespace vitrine::tools {

/// --init had two meanings, distinguished by the form of its value: --rendezvous and, with `has_weights`, --init-weights.
void add_deprecated_init(CLI::App& app, Options& options, bool has_weights);

/// --recompute-segments, formerly --checkpoint-segments and, if plans may choose, --checkpoint.
void add_recompute_options(CLI::App& app, Options& options, bool may_choose);

/// --broadcast half|masters; half was formerly called shadow.
void add_broadcast_option(CLI::App& app, Options& options, const std::string& group);

}  // namespace vitrine::tools
