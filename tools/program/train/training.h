// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nn/atomic_file.h"
#include "nn/lr_schedule.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/state/state_hash.h"
#include "tools/program/checkpoint/checkpoints.h"
#include "tools/program/checkpoint/resume.h"
#include "tools/program/checkpoint/run_state.h"
#include "tools/program/record/record.h"
#include "tools/program/run/batches.h"
#include "tools/program/run/evaluate.h"
#include "tools/program/run/measure.h"
#include "tools/program/run/run.h"
#include "tools/program/run/run_log.h"

namespace vitrine::tools {

/// Hashes of a run's training state, with --exact and --hashes FILE.jsonl. The file has a line for each step,
/// {"step": 1, "state_hash": ..., "leaves": [HASH, ...], "gradients": {NAME: HASH, ...}, "tensors": {NAME: HASH, ...},
/// "sketches": {"gradients": [...], "parameters": [...]}}: with --exact the loss of each leaf; reduced gradients, in
/// the order in which backward finishes them; the state in the order of StateHash::parts; and eight sums from which the
/// size of a difference is estimated.
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

/// Refuses schedules that the options of the run rule out. throws ConfigError.
void check_train_schedule(const Options& options);

/// The steps and epochs of one run, with its evaluations, checkpoints and logs. Steps are counted over the whole run; a
/// run that continues from a checkpoint begins at a later one.
class Training {
 public:
  /// run_id  for the checkpoints      log  receives each step and epoch      resumed  where the run continues; nothing
  /// for a run from the start
  Training(const Options& options, const Job& job, Run& run, std::string run_id, RunLog& log, Checkpoints& checkpoints,
           StateHashes& hashes, const std::optional<Resumed>& resumed);

  /// Whether the checkpoint from which the run continues is at its end already, or beyond it: run() has nothing to do
  /// then.
  bool is_complete() const {
    return start_.of_run != nullptr && (epoch_ >= epoch_count_ || batches_done() > total_batches_);
  }
  /// "the run is complete: 3 epochs are done, ...". requires is_complete()
  std::string describe_completion() const;
  /// Trains to the end, until interrupted, until training diverges, or until data cannot be read: RunRecord says why.
  /// An interrupted run and one without data leave a checkpoint of the last step.
  ///   before_last_evaluation  called when all steps are done, if an evaluation follows; every process calls it
  /// throws  DataError for data that cannot be read before the first step
  void run(const std::function<void()>& before_last_evaluation);
  /// Called when all steps are done.
  void end();

  /// Whether training stopped early, in all processes at the same step.
  bool stopped() const { return stopped_; }
  /// What was trained, without measurements of the devices. If training diverged, the engine holds the last finite
  /// parameters.
  const RunRecord& record() const { return record_; }
  const PhaseRecorder& recorder() const { return recorder_; }
  const RecordedSteps& recorded() const { return recorded_; }

 private:
  /// Where a run begins: a position in its epochs, and what it carries from before.
  struct Start {
    /// throws DataError: the epochs of `state` are not those of this run
    Start(const RunState* state, int64_t steps_per_epoch, int64_t batch_size);
    int64_t epoch = 0, batch = 0;
    const RunState* of_run;  // null for a run from the start
  };

  static LoaderConfig loader_from(const Options& options, const Job& job, const Run& run, const Start& start,
                                  int64_t epoch_count);

  void run_epochs(const std::function<void()>& before_last_evaluation);
  /// The next batch; nothing if it cannot be read: training stops then. With several processes a failure is known so
  /// far ahead that all stop after the same step, before it.
  std::optional<HostBatch> next_batch();
  /// With several processes: stops training if one of them cannot read what it trains before it can vote.
  void check_first_batches();
  /// throws DivergedError if the test loss is not finite, unless that is allowed. All processes have the same test
  /// loss.
  void check_evaluation(const EpochRecord& result) const;
  void end_epoch_of_schedule(const EpochRecord& result);
  void begin_result();
  /// Moves to the next epoch, and saves a checkpoint where it should. False: the run has ended within the
  /// epoch.
  bool end_epoch();

  /// Where the next batch is. A whole epoch that has not been evaluated yet ends at batch steps_per_epoch_.
  struct Position {
    int64_t epoch, batch;
    bool operator==(const Position&) const = default;
  };
  int64_t batches_done() const { return epoch_ * steps_per_epoch_ + batch_; }
  int64_t steps_of_epoch() const { return std::min(steps_per_epoch_, total_batches_ - epoch_ * steps_per_epoch_); }

  /// requires that the results of all steps have been taken
  void save();

  /// The evaluation of the averages of the weights, if there are any.
  std::optional<Evaluation> evaluate();
  bool is_evaluation_due() const;
  void evaluate_within_epoch();
  void add_step(const StepResult& totals);
  void train_epoch(EpochRecord& result);
  void set_learning_rate();
  void log_epoch(const EpochRecord& result);
  /// "  lr 0.001, lowered to 0.0001": the learning rate of the last step, and of the next; empty for a constant one.
  std::string describe_rate() const;
  void print_epoch(const EpochRecord& result) const;

  const Options& options_;
  const Job& job_;
  Run& run_;
  std::string run_id_;
  Engine& engine_;
  bool stopped_ = false;
  std::exception_ptr error_;  // of the data, in this process
  int64_t steps_per_epoch_;
  Start start_;
  int64_t total_batches_,
      epoch_count_;  // the end of the run: a number of batches, counted from its start, and the epochs that they begin
  int64_t first_step_;             // of this process
  int64_t epoch_, batch_;          // the position of the next batch; epochs count from 0
  std::optional<Position> saved_;  // the position of the last checkpoint
  SettingValues settings_;
  double epoch_begin_seconds_ = 0.0;  // of the current result
  EpochRecord other_sums_;            // of the epoch with --steps, else of the run: a run that continues may count
                                      // the other way
  LrSchedule schedule_;
  RunLog& log_;
  Checkpoints& checkpoints_;
  StateHashes& hashes_;
  std::vector<double> rates_;  // learning rates of the steps issued
  BatchSource source_;
  RecordedSteps recorded_;
  PhaseRecorder recorder_;
  RunRecord record_;
};

}  // namespace vitrine::tools
