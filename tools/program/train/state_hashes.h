// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "nn/atomic_file.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/state/state_hash.h"

namespace vitrine::tools {

/// Hashes of a run's training state, with --exact and --hashes FILE.jsonl. The file has a line for each step,
/// {"step": 1, "state_hash": ..., "leaves": [HASH, ...], "gradients": {NAME: HASH, ...}, "tensors": {NAME: HASH, ...}}:
/// with --exact the loss of each leaf; reduced gradients, in the order in which backward finishes them; and the state
/// in the order of StateHash::parts.
class StateHashes {
 public:
  /// Opens the file, unless the path is empty.   throws DataError
  StateHashes(const std::string& path, Engine& engine);
  /// After each step of the run: waits for it and adds its line, where there is a file.
  void add_step();
  /// The hash of the state now.
  StateHash take();
  /// Completes the file.   throws DataError
  void close();

 private:
  Engine& engine_;
  std::optional<AtomicFile> file_;
  std::optional<TrainingState> state_;  // memory for the copy
};

}  // namespace vitrine::tools
