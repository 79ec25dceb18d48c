// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "tools/program/options.h"

/// Options that had other names, which still work: hidden from the help, with a warning that says what replaces them.
namespace vitrine::tools {

/// --init had two meanings, told apart by the form of its value: --rendezvous and, where `has_weights`, --init-weights.
void add_deprecated_init(CLI::App& app, Options& options, bool has_weights);

/// --recompute-segments, which was --checkpoint-segments and, where plans may choose, --checkpoint.
void add_recompute_options(CLI::App& app, Options& options, bool may_choose);

/// --broadcast half|masters; half was shadow.
void add_broadcast_option(CLI::App& app, Options& options, const std::string& group);

}  // namespace vitrine::tools
