// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "runtime/process_group/launch.h"
#include "runtime/process_group/process_group.h"
#include "tools/program/options.h"

namespace vitrine::tools {

/// This process among those that a launcher started with it.
class Processes {
 public:
  /// Finds out how the program was started, and meets the other processes. Only rank 0 prints: the stdout of the others leads nowhere from here on.
  /// Fills in the options' local rank. throws ConfigError, CommError, UnsupportedError naming what is missing.
  explicit Processes(Options& options);

  /// Null when the process is alone.
  const std::shared_ptr<ProcessGroup>& process_group() const { return process_group_; }
  bool leads() const { return !process_group_ || process_group_->rank() == 0; }
  int count() const { return process_group_ ? process_group_->size() : 1; }

  /// The program has failed: tells the others and the user, and returns when it may end; MPI is then not ended, for that waits for all.
  void fail(const std::string& reason, bool usage);
  /// All is done. throws CommError when another process has failed meanwhile.
  void close();

 private:
  std::shared_ptr<ProcessGroup> process_group_;
};

/// Throws ConfigError when there are several processes: for commands that work in one.
void require_alone(const Processes& processes, const char* command);

}  // namespace vitrine::tools
