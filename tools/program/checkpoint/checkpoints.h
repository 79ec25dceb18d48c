// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "nn/checkpoint.h"
#include "nn/parallel/engine.h"
#include "tools/program/checkpoint/run_state.h"
#include "tools/program/flags/options.h"
#include "tools/program/process/processes.h"
#include "tools/program/record/record.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

/// Opens --checkpoint-dir on rank 0, before any work. Null without it, and in other processes.
/// throws  DataError: it cannot be written to, another process writes there, or it holds checkpoints that this run does
///         not continue
std::unique_ptr<CheckpointDirectory> open_checkpoint_directory(const Options& options, const Processes& processes);

/// Saves the checkpoints of a run: decides when, copies the state, and writes it on a thread while training goes on. A
/// save that fails is reported on stderr and loses nothing else: training continues, older checkpoints stay, and
/// finish() throws at the end. Rank 0 writes; every process makes the same calls.
class Checkpoints {
 public:
  ///   run_id  of the run: checkpoints of others in the directory are never removed
  ///   directory  null: nothing is saved, unless another process does     best  of the run so far
  /// Allocates the staging memory. throws OutOfMemory.
  Checkpoints(const Options& options, const Processes& processes, Run& run, const Job& job, const std::string& run_id,
              std::unique_ptr<CheckpointDirectory> directory, std::optional<BestCheckpoint> best);
  /// Waits for the save in progress.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Checkpoints are saved, by this process or another.
  bool active() const { return active_; }
  /// Whether to save one after this step.
  bool should_save_after_step(int64_t step) const;
  /// Whether to save one after an epoch. With --keep-best also if the test accuracy is higher than that of all
  /// epochs whose checkpoints were saved; the epoch is the best one once its own is. Waits for the save in progress
  /// where the answer depends on it. Every process calls it.
  bool should_save_after_epoch(int64_t step, std::optional<double> test_accuracy);
  /// Copies the engine's state, after the save in progress has ended, and hands it to the thread. requires that all
  /// results of the engine's steps have been taken. Every process calls it.
  ///   state  of the run; its counters are filled in
  void save(RunState state);
  /// The step of the last save() of this run; none before.
  std::optional<int64_t> last_step() const { return last_step_; }
  /// Waits for the save in progress. throws DataError if a save has failed. Every process calls it.
  void finish();
  /// For the record of the run; nothing where no checkpoints are written. requires finish()
  std::optional<CheckpointRecord> record() const;

 private:
  void wait_for_save();
  bool is_best(double test_accuracy);
  void write(const RunState& state);
  void remove_old(const RunState& state);

  const Options& options_;
  const Processes& processes_;
  Engine& engine_;
  const std::map<std::string, std::string> metadata_;  // of the weights
  bool active_;
  CheckpointInterval interval_;
  std::unique_ptr<CheckpointDirectory> directory_;
  std::optional<BestCheckpoint> best_;       // the last one that was saved
  std::optional<BestCheckpoint> next_best_;  // is saved next
  std::optional<BestCheckpoint> new_best_;   // being saved; best_ once wait_for_save() knows that it is saved
  std::optional<int64_t> last_step_;
  std::set<std::string> own_;  // names of the whole checkpoints of this run; only these are removed
  CheckpointRecord record_;

  // Of rank 0:
  std::optional<TrainingState> staging_;
  HostBuffer scratch_;
  std::thread thread_;
  std::atomic<bool> saving_{false};
  bool saved_ = false;  // the last write() was a success; written by the thread
  std::string error_;   // of the last save that failed; written by the thread
};

/// Writes the engine's parameters to --save, if given, on rank 0. Every process calls it: while rank 0 writes, it
/// reports its progress to the others, which wait as long as that takes. With several processes a child process writes,
/// and continues if this one is killed. throws DataError, CommError.
void save_weights(const Options& options, const Job& job, Engine& engine, const Processes& processes);

/// After an error in training: saves what the devices still hold, on rank 0 alone, and reports it on stderr.
void rescue_weights(const Options& options, const Job& job, Engine& engine, const Processes& processes) noexcept;

}  // namespace vitrine::tools
