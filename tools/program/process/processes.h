// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "runtime/process_group/launch.h"
#include "runtime/process_group/process_group.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {

/// This process among those that a launcher started with it.
class Processes {
 public:
  /// Detects how the program was started and joins the other processes. Only rank 0 prints: the others' stdout is
  /// discarded from now on. Fills in the options' local rank. throws ConfigError, CommError, UnsupportedError naming
  /// what is missing.
  explicit Processes(Options& options);

  /// Null for a single process.
  const std::shared_ptr<ProcessGroup>& process_group() const { return process_group_; }
  bool leads() const { return !process_group_ || process_group_->rank() == 0; }
  int count() const { return process_group_ ? process_group_->size() : 1; }

  /// Reports a failure of the program to the other processes and the user, and returns when the process may exit. Does
  /// not finalize MPI, which would wait for all ranks.
  void fail(const Reason& reason, bool usage);
  /// Ends a successful run. throws CommError if another process has failed.
  void close();

 private:
  std::shared_ptr<ProcessGroup> process_group_;
};

/// Returns the path of this process's own file: FILE.json for rank 0, FILE.rank1.json for rank 1, and so on; empty for
/// an empty path.
std::string path_of_rank(const std::string& path, const Processes& processes);

/// Throws ConfigError if there are several processes: for commands that support only one.
void require_alone(const Processes& processes, const char* command);

}  // namespace vitrine::tools
