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

/// Writes the data of --tensorboard during training. A write error does not stop training: nothing more is written, and close() throws the error.
class RunLog {
 public:
  /// Without a folder every call does nothing. `facts` become a table on TensorBoard's text page. throws DataError if the file cannot be created.
  RunLog(const std::string& folder, const std::vector<std::pair<std::string, std::string>>& facts);

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
  /// The memory peak of a device, total and by category, in MiB.
  void add_memory(const std::string& device, int64_t step, const PoolStatistics& statistics);
  /// throws the first write error.
  void close();

 private:
  template <class Write>
  void attempt(const Write& write);

  std::optional<TensorboardWriter> writer_;
  std::exception_ptr error_;
};

}  // namespace vitrine::tools
