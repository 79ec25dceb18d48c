// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <vitrine/nn/checkpoint.h>
#include <vitrine/runtime/descriptor.h>

namespace vitrine {

/// "step-00001234": the name of the checkpoint after so many optimizer steps.
std::string checkpoint_name(int64_t step);

/// A folder with the name of a checkpoint.
struct NamedCheckpoint {
  int64_t step = 0;
  std::string path;
};
/// The checkpoints in a directory by name, in ascending order of steps; empty when the directory does not exist.
/// throws  DataError
std::vector<NamedCheckpoint> list_checkpoints(const std::string& directory);

/// A checkpoint whose checksums are right.
struct WholeCheckpoint {
  std::string path;
  std::string state_json;
};
/// The newest whole checkpoint in a directory, or nothing.   throws  DataError if the directory cannot be read
///   skipped  called for each newer one that is not whole, with the reason
std::optional<WholeCheckpoint> newest_whole_checkpoint(const std::string& directory,
                                                       const std::function<void(const std::string& reason)>& skipped);

/// A directory into which this process alone writes checkpoints, as long as the object lives.
class CheckpointDirectory {
 public:
  /// Makes the directory if it is missing and locks `.lock` in it, which the system releases when the process ends in
  /// any way. A lock that another process holds is waited for up to `patience_seconds`: it may be ending. Temporary
  /// folders that a process has left are removed.
  /// throws  DataError: the path is a file or a checkpoint, the directory cannot be made or written to, another process
  ///         writes there
  explicit CheckpointDirectory(const std::string& path, double patience_seconds = 10.0);
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// Names a checkpoint of this directory: the symbolic link path()/link points to it afterwards.
  /// throws  DataError; the directory is unchanged then
  void point_link(const std::string& link, const std::string& name);

 private:
  bool try_lock();

  std::string path_;
  Descriptor lock_;
  bool locked_ = false;  // false on file systems without locks
};

}  // namespace vitrine
