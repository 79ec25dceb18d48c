// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "nn/checkpoint.h"
#include "nn/parallel/engine.h"
#include "tools/program/record/record.h"

/// Checkpoints as files: those that a path names, and what saving one takes.
namespace vitrine::tools {

/// The checkpoint in `path`, a folder of checkpoints or one of them; newer ones that are not whole are reported on
/// stderr. Nothing if the folder has none. throws DataError
std::optional<WholeCheckpoint> find_checkpoint(const std::string& path);
/// The same. throws DataError if the folder has none
WholeCheckpoint require_checkpoint(const std::string& path);
/// The weights file that a path names, for load_parameters(): the path itself; for a folder, model.safetensors of the
/// checkpoint that find_checkpoint() finds, else model.safetensors or its index, as Hugging Face has them.
/// throws DataError if the folder has none
std::string find_weights(const std::string& path);

/// Host memory that saving takes, by name: the copy of the training state, and the buffer in which each tensor gets
/// PyTorch's layout.
StagingBytes plan_checkpoint_staging(const FlatLayout& layout, const BufferLayout& buffers, const EngineConfig& config);

}  // namespace vitrine::tools
