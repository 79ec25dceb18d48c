// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace vitrine::tools {

/// Shows the progress of a run on stderr: a bar on a terminal, a plain line every few seconds elsewhere.
class Progress {
 public:
  struct Options {
    bool quiet = false;       // nothing is shown
    int64_t log_every = 0;    // above 0: a plain line after this many steps instead of every few seconds
    int64_t steps_after = 0;  // of the run, when the bar is full: they count for the time left
  };

  /// label  "epoch 2/5"   total_steps  steps until the bar is full
  Progress(std::string label, int64_t total_steps, Options options, std::FILE* stream = stderr);
  /// Removes the bar from the terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Called after each step. `samples` and `loss` cover the finished steps.
  void update(int64_t steps_done, int64_t samples, double loss);
  void clear();

  /// The line without the drawing, and the bar with it: what update() shows.
  static std::string line(const std::string& label, int64_t steps_done, int64_t total_steps, double loss,
                          double samples_per_second, double seconds_left);
  /// Cut to `width`.
  static std::string with_bar(const std::string& text, int64_t steps_done, int64_t total_steps, int width);
  static std::string bar(int64_t steps_done, int64_t total_steps, int width);

 private:
  std::string label_;
  int64_t total_steps_;
  std::FILE* stream_;
  Options options_;
  bool terminal_;
  bool drawn_ = false;
  int64_t begin_ns_, last_ns_;
  int64_t logged_ = 0;  // multiples of log_every
};

}  // namespace vitrine::tools
