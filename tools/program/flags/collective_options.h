// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tools/program/flags/options.h"

namespace CLI {
class App;
}

namespace vitrine::tools {

/// Flags of `vitrine collectives` that CLI11 cannot read by itself.
struct CollectiveTexts {
  std::string min_bytes, max_bytes, step_bytes, dtype = "float", redop = "sum", counts;
};

/// What is timed, and its sizes, with the names that nccl-tests use.
void add_collective_options(CLI::App& app, CollectiveOptions& options, CollectiveTexts& texts);

/// Completes the options by the texts. throws ConfigError
void resolve_collectives(const CLI::App& app, const CollectiveTexts& texts, CollectiveOptions& options);

/// The size that follows `bytes`: larger than it, and above max_bytes after the last one.
int64_t next_size(const CollectiveOptions& options, int64_t bytes);

}  // namespace vitrine::tools
