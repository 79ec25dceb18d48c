// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/pool.h"
#include "tools/program/record/confusion.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/log_file.h"
#include "tools/program/text/tensorboard.h"

namespace vitrine::tools {

class Processes;

/// Writes the data of --tensorboard and --log during training. A write error does not stop training: nothing more is
/// written, and close() throws the error. With several processes each has one, and those without files take part in the
/// exchange of memory statistics.
class RunLog {
 public:
  /// Where a run is logged, and what is known of it before its first step.
  struct Target {
    std::string tensorboard, file;                           // empty: not there
    std::vector<std::pair<std::string, std::string>> facts;  // a table on TensorBoard's text page
    Json config = {};                                        // the settings in force: the first line of a .jsonl file
    std::vector<std::string> devices = {};                   // of this process, for the memory columns of a .csv file
    const Processes* processes = nullptr;                    // null: one process
    int64_t steps_before =
        0;  // of the run that this one continues: TensorBoard drops what earlier files in the folder have beyond them
    std::string run_id = {};  // of the run, kept in its checkpoints: a log of another run is not continued
  };
  /// Every process calls it. throws DataError if a file cannot be created, or `file` has the rows of another run than
  /// the one that continues.
  explicit RunLog(const Target& target);

  struct Step {
    int64_t step = 0, epoch = 0;  // from 1; steps over the whole run
    double loss = 0.0, lr = 0.0;
    std::optional<double> loss_scale;
  };
  void add_step(const Step& step);
  /// The peak of a device, in all and by category.
  struct Memory {
    std::string device;
    PoolStatistics statistics;
  };
  struct Epoch {
    int64_t step = 0, epoch = 0;  // the last step of the epoch
    double train_loss = 0.0, samples_per_second = 0.0;
    int64_t samples = 0;         // trained on
    double train_seconds = 0.0;  // spent training, without evaluation
    std::optional<double> test_loss, test_accuracy, test_top5;
    std::vector<Memory> memory;                  // of the devices of this process
    const ConfusionMatrix* confusion = nullptr;  // TensorBoard shows it as an image
  };
  /// Every process calls it after the same step.
  void add_epoch(const Epoch& epoch);
  struct Evaluation {
    int64_t step = 0, epoch = 0;
    double loss = 0.0, accuracy = 0.0;
    std::optional<double> top5;
  };
  /// An evaluation within an epoch.
  void add_evaluation(const Evaluation& evaluation);
  /// Hands the rows so far to the operating system, so that they are not lost if the process is killed. Called before a
  /// checkpoint is saved.
  void flush();
  /// throws the first write error.
  void close();

 private:
  /// Calls `write` unless an earlier call has failed.
  template <class Write>
  void attempt(const Write& write);
  /// The run up to now. A run that continues a log counts on from its last row.
  double seconds() const;

  const Processes* processes_;
  std::optional<TensorboardWriter> tensorboard_;
  std::optional<LogFile> file_;
  int64_t begin_ns_;
  std::exception_ptr error_;
};

}  // namespace vitrine::tools
