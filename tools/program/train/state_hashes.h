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
  /// Opens the file on rank 0, unless the path is empty.   throws DataError
  StateHashes(const std::string& path, Engine& engine, bool is_rank0);
  /// After each step of the run: waits for it and adds its line, where there is a file. Every process calls it.
  void add_step();
  /// The hash of the state now; empty in other processes than rank 0. Every process calls it.
  StateHash take();
  /// Completes the file.   throws DataError
  void close();

 private:
  Engine& engine_;
  const bool is_rank0_, adds_steps_;
  std::optional<AtomicFile> file_;
  std::optional<TrainingState> state_;  // memory for the copy
};

}  // namespace vitrine::tools
