// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tuned_plans.h"
#include "nn/lr_schedule.h"
#include "nn/parallel/state/training_checkpoint.h"
#include "tools/program/record/record.h"

/// What a run carries from step to step beside the tensors: the "state" in a checkpoint's state.json.
namespace vitrine::tools {

/// The checkpoint with the highest test accuracy so far.
struct BestCheckpoint {
  int64_t step = 0;
  double accuracy = 0.0;
};

/// 16 random hexadecimal digits, which name a run across its interruptions.
std::string new_run_id();

/// The engine's flat buffers and counters are in the checkpoint's files.
struct RunState : TrainingScalars {
  std::string run_id;      // new_run_id() of the start from scratch
  std::string parameters;  // parameters_hash()

  /// The place in the data: `batch` batches of epoch `epoch` (from 0) have been trained. A whole epoch whose evaluation
  /// is still to come has batch == batches_per_epoch.
  int64_t epoch = 0, batch = 0, batches_per_epoch = 0, batch_size = 0;
  uint64_t seed = 0;

  EpochRecord epoch_so_far,
      run_so_far;  // the sums of the epoch and of the run up to here: one with --epochs, the other with --steps
  LrSchedule::State schedule;
  std::optional<double> test_loss, test_accuracy;  // of the evaluation that this checkpoint follows
  std::optional<BestCheckpoint> best;
  std::vector<std::pair<std::string, std::string>> settings;  // run_settings()
  std::optional<TunedPlans> plans;                            // in use by --autotune
  std::string version;                                        // of the program
};

/// A JSON object. Numbers survive exactly; those that are not finite are strings.
std::string run_state_json(const RunState& state);
/// throws DataError naming `path`, the member that is missing or of another type, and the version that wrote the state
/// if it is another one.
RunState parse_run_state(const std::string& path, const std::string& json);

/// The run_id of a checkpoint, "" if its state has none. Nothing if the checkpoint is not whole; of its tensors only
/// the sizes of the files are checked.
std::optional<std::string> run_id_of(const std::string& checkpoint);

}  // namespace vitrine::tools
