// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine::tools {

/// Predicts from the steps so far when all runs are done.
class TimeLeft {
 public:
  ///   evaluation  time of one evaluation of the test set, as a share of an epoch's steps      steps_left  of all runs
  TimeLeft(double evaluation, int64_t steps_per_epoch, int64_t steps_left)
      : evaluation_(evaluation), steps_per_epoch_(steps_per_epoch), steps_left_(steps_left) {}

  void begin_run(const std::string& name) {
    name_ = name;
    steps_ = 0;
  }
  /// The result of a step has been read. After some steps of the first run the whole time is printed on stderr.
  void add_step(int64_t runs);
  /// Prints the time that is left on stderr.
  void end_run(int64_t done, int64_t runs) const;
  /// A run ended before its last step.
  void drop_steps(int64_t count) { steps_left_ -= count; }
  int64_t steps_of_run() const { return steps_; }

 private:
  double seconds_left() const;

  double evaluation_;
  int64_t steps_per_epoch_, steps_left_;
  std::string name_;
  int64_t steps_ = 0, timed_ = 0, begin_ns_ = 0, nanoseconds_ = 0;
  bool printed_ = false;
};

}  // namespace vitrine::tools
