// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <vitrine/nn/weights_file.h>

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

}  // namespace vitrine
