// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/program/record/record.h"
#include "tools/program/run/evaluate.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/log_file.h"
#include "tools/program/text/tensorboard.h"

namespace vitrine::tools {

class Processes;

/// Writes the data of --tensorboard and --log during training. A write error is reported at once on stderr and stops
/// neither training nor the other of the two: nothing more is written there, and its close function throws the error.
/// With several processes each has one, and those without files take part in the exchange of memory statistics.
class RunLog {
 public:
  /// Where a run is logged, and what is known of it before its first step.
  struct Target {
    std::string tensorboard, file;                           // empty: not there
    std::vector<std::pair<std::string, std::string>> facts;  // a table on TensorBoard's text page
    Json config = {};                                        // the effective settings: the first line of a .jsonl file
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
  /// Every process calls it after the same step.
  ///   devices  names and pools of this process's devices      confusion  the report of the matrix, which TensorBoard
  ///            shows; empty: there is none
  void add_epoch(const EpochRecord& epoch, const std::vector<DeviceRecord>& devices, const std::string& confusion);
  /// An evaluation within an epoch.
  void add_evaluation(int64_t step, int64_t epoch, const Evaluation& evaluation);
  /// Hands the rows so far to the operating system, so that they are not lost if the process is killed. Called before a
  /// checkpoint is saved.
  void flush();
  /// throw the first write error.
  void close_file();
  void close_tensorboard();

 private:
  template <class Output>
  struct Sink {
    std::optional<Output> output;
    std::exception_ptr error;  // the first one
  };
  /// Calls `write` with the output if there is one, and no earlier call has failed.
  template <class Output, class Write>
  static void attempt(Sink<Output>& sink, const Write& write);
  /// The run up to now. A run that continues a log counts on from its last row.
  double seconds() const;

  const Processes* processes_;
  Sink<TensorboardWriter> tensorboard_;
  Sink<LogFile> file_;
  int64_t begin_ns_;
};

}  // namespace vitrine::tools
