// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <vitrine/nn/weights_file.h>
#include <vitrine/runtime/descriptor.h>

namespace vitrine {

/// A file of tensors in a checkpoint.
struct CheckpointFile {
  std::string name;  // "model.safetensors"
  std::vector<TensorSource> tensors;
  std::map<std::string, std::string> metadata;
};

/// One checkpoint is a folder of safetensors files and `state.json`:
///
///     {"format": 1,
///      "state": {...},                                                     what the writer stored beside the tensors
///      "files": {"model.safetensors": {"bytes": 1234, "xxh3": "0123456789abcdef"}, ...},
///      "checksum": "..."}                                                  XXH3 of the object without this member, as
///        nlohmann::ordered_json::dump()
///
/// The folder appears under its name as a whole: files and folder are written under a temporary name `.tmp-NAME-PID`
/// and flushed to the disk, the folder is renamed, and the directory that holds it is flushed. A process that is
/// killed, or a machine that loses power, at any instant leaves the whole folder or nothing under the name, and at most
/// a temporary folder.
inline constexpr const char* kCheckpointStateFile = "state.json";
inline constexpr const char* kCheckpointTemporaryPrefix = ".tmp-";

/// Writes the checkpoint directory/name. A folder of that name is replaced: it stays whole until the new one takes its
/// place.
///   state_json  a JSON object     progress  called with the bytes so far, each time that more of them is on the disk
/// throws  DataError with the path and the reason (such as a full disk), after removing the temporary folder; other
///         checkpoints are unchanged
void write_checkpoint(const std::string& directory, const std::string& name, const std::vector<CheckpointFile>& files,
                      const std::string& state_json, const WriteProgress& progress = {});

/// Flushes the entries of a folder to the disk, so that a machine that loses power keeps them.   throws  DataError
void flush_folder(const std::string& folder);

/// Whether a folder is a checkpoint, whole or not: it contains state.json.
bool is_checkpoint(const std::string& folder);
/// Reads state.json, checks it and its files against their checksums, and returns the JSON object that was passed as
/// state_json.
///   files  false: only their sizes are checked
/// throws  DataError naming file, expected and actual value
std::string read_checkpoint(const std::string& folder, bool files = true);
/// Removes a checkpoint, so that no instant leaves a part of it under its name.   throws  DataError
void remove_checkpoint(const std::string& folder);

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
