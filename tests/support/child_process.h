// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/support/text.h"

namespace vitrine::test {

struct ChildResult {
  int exit_code = -1;  // -1: ended by a signal
  std::string output;
  std::string error;  // empty on a terminal, where both streams are in `output`
};

/// A program as a child process.
class ChildProcess {
 public:
  enum class Streams { pipes, terminal };

  /// command: the program's path or name, then its arguments. environment: "NAME=value" sets a variable, "NAME" alone
  /// removes it.
  explicit ChildProcess(const std::vector<std::string>& command, Streams streams = Streams::pipes,
                        const std::vector<std::string>& environment = {});
  /// Kills the child if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Reads until stdout or stderr contains `text`; false when both end without it.
  bool wait_for(const std::string& text);
  void send_signal(int signal_number) const;
  pid_t pid() const { return pid_; }
  /// Reads to the end and waits for the child to exit.
  ChildResult wait();

 private:
  bool read_some();

  pid_t pid_ = -1;
  int output_ = -1, error_ = -1;
  ChildResult result_;
};

}  // namespace vitrine::test
