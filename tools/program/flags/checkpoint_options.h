// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vitrine::tools {

/// When checkpoints are saved.
struct CheckpointInterval {
  bool epochs = false;   // after each epoch
  int64_t steps = 0;     // above 0: after so many optimizer steps
  double minutes = 0.0;  // above 0: after so much time
};

/// The flags of checkpoints.
struct CheckpointOptions {
  std::string directory;  // empty: none are saved
  std::optional<std::string> every;
  std::optional<int64_t> keep_last;
  bool keep_best = false;
  std::string resume;  // a directory of checkpoints, one of them, or "auto"
  std::vector<std::string> resume_change;

  bool resumes_automatically() const { return resume == "auto"; }
};

/// throws ConfigError.
CheckpointInterval resolve_checkpoint_interval(const CheckpointOptions& options);
/// throws ConfigError for flags that need others.
///   evaluates_epochs  the run evaluates each epoch on the test set
void check_checkpoint_options(const CheckpointOptions& options, const std::string& init_weights, bool evaluates_epochs);

}  // namespace vitrine::tools
