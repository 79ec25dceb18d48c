// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/program/flags/options.h"

namespace CLI {
class App;
}

/// Options that exchange memory for time or precision: recomputation, and the data type of broadcasts.
namespace vitrine::tools {

/// --recompute-segments and, if plans may choose, --recompute.
void add_recompute_options(CLI::App& app, Options& options, bool may_choose);

/// Sets the value of --recompute-segments: N, sqrt or, if plans may choose, auto. throws ConfigError
void set_recompute_segments(Options& options, const std::string& text, bool may_choose);

/// --broadcast half|masters.
void add_broadcast_option(CLI::App& app, Options& options);

}  // namespace vitrine::tools
