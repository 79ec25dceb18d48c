// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/pool.h"
#include "tools/program/tensorboard.h"

namespace vitrine::tools {

/// What --tensorboard receives during training. An error in writing never stops training: nothing more is written, and close() throws it.
class RunLog {
 public:
  /// An empty folder: every call does nothing. `facts` become a table on TensorBoard's text page.
  ///   steps_before  of the run that this one continues: TensorBoard drops what earlier files in the folder have beyond them
  /// throws  DataError when the file cannot be made
  RunLog(const std::string& folder, const std::vector<std::pair<std::string, std::string>>& facts, int64_t steps_before = 0);

  struct Step {
    int64_t step = 0;  // 1-based, over the whole run
    double loss = 0.0, lr = 0.0;
    std::optional<double> loss_scale;
  };
  void add_step(const Step& step);
  struct Epoch {
    int64_t step = 0;  // the last one of the epoch
    double samples_per_second = 0.0;
    std::optional<double> test_loss, test_accuracy;
  };
  void add_epoch(const Epoch& epoch);
  /// The peak of a device, in all and by category, in MiB.
  void add_memory(const std::string& device, int64_t step, const PoolStatistics& statistics);
  /// throws the first error in writing.
  void close();

 private:
  template <class Write>
  void attempt(const Write& write);

  std::optional<TensorboardWriter> writer_;
  std::exception_ptr error_;
};

}  // namespace vitrine::tools
