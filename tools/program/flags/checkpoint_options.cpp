// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {

CheckpointInterval resolve_checkpoint_interval(const CheckpointOptions& o) {
  CheckpointInterval interval;
  const std::string text = o.every.value_or("epoch");
  if (text == "epoch") {
    interval.epochs = true;
    return interval;
  }
  if (const auto steps = parse_number<int64_t>(text); steps && *steps > 0) {
    interval.steps = *steps;
    return interval;
  }
  throw ConfigError(fmt::format("--checkpoint-every {}: expected epoch or a number of steps, such as 500", text));
}

void check_checkpoint_options(const CheckpointOptions& o, const std::string& init_weights, bool evaluates_epochs) {
  resolve_checkpoint_interval(o);
  const auto needs_directory = [&](bool given, const char* option) {
    if (given && o.directory.empty())
      throw ConfigError(fmt::format("{} needs a place for checkpoints; add --checkpoint-dir DIR, or omit it", option));
  };
  needs_directory(o.every.has_value(), "--checkpoint-every");
  needs_directory(o.keep_last.has_value(), "--keep-last");
  needs_directory(o.keep_best, "--keep-best");
  needs_directory(o.resumes_automatically(), "--resume auto");
  if (o.keep_best && !evaluates_epochs) {
    throw ConfigError(
        "--keep-best compares epochs on the test set; give --epochs instead of --steps, and no --no-eval");
  }
  if (!o.resume.empty() && !o.resumes_automatically() && !init_weights.empty()) {
    throw ConfigError(
        "--resume and --init-weights both say where to start; give one of them (--resume auto takes --init-weights for "
        "the first start)");
  }
}

}  // namespace vitrine::tools
