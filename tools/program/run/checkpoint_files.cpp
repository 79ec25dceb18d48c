// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/checkpoint_files.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::tools {

namespace {

namespace fs = std::filesystem;

void warn(const std::string& reason) {
  fmt::print(stderr, "vitrine: warning: {}; this checkpoint is skipped\n", reason);
}

}  // namespace

std::optional<WholeCheckpoint> find_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw DataError(fmt::format("{}: {}; name a folder of checkpoints, or one checkpoint's folder", path,
                                fs::exists(path, error) ? "it is not a folder" : "there is no such folder"));
  }
  if (is_checkpoint(path)) return WholeCheckpoint{path, read_checkpoint(path)};
  const std::optional<WholeCheckpoint> found = newest_whole_checkpoint(path, warn);
  if (!found && !list_checkpoints(path).empty())
    throw DataError(fmt::format("{}: all of its checkpoints are damaged; the warnings above name the files", path));
  return found;
}

WholeCheckpoint require_checkpoint(const std::string& path) {
  std::optional<WholeCheckpoint> found = find_checkpoint(path);
  if (!found) throw DataError(fmt::format("{}: there is no checkpoint in it", path));
  return std::move(*found);
}

std::string find_weights(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  if (const std::optional<WholeCheckpoint> found = find_checkpoint(path))
    return (fs::path(found->path) / "model.safetensors").string();
  const auto contains = [&](const char* name) { return fs::exists(fs::path(path) / name, error); };
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (contains(name)) return (fs::path(path) / name).string();
  }
  throw DataError(fmt::format(
      "{}: expected a checkpoint, model.safetensors or model.safetensors.index.json in this folder, found {}", path,
      contains("pytorch_model.bin")
          ? "pytorch_model.bin, a file of torch.save; convert it with docs/examples/convert_weights.py"
          : "none of them; name the file of the weights"));
}

StagingBytes plan_checkpoint_staging(const FlatLayout& layout, const BufferLayout& buffers,
                                     const EngineConfig& config) {
  StagingBytes bytes = training_state_bytes(layout, buffers, config);
  bytes.emplace_back("tensor being written", checkpoint_scratch_elements(layout, buffers) * size_of(DType::f32));
  return bytes;
}

}  // namespace vitrine::tools
