// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/nn/buffer_layout.h>
#include <vitrine/nn/checkpoint_folder.h>
#include <vitrine/nn/parallel/optimizer.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/host_buffer.h>

namespace vitrine {

/// All that an engine carries from one step to the next, in host memory: what a checkpoint contains. Random numbers need no state of their own: they
/// are functions of the seed and counters (Philox), of which `step` is the only one that the engine counts; the order of samples depends on the epoch.
/// The memory of a custom step or reducer (EngineConfig::step, reducer) is not part of it.
struct TrainingState {
  int64_t step = 0;        // optimizer steps so far: the number of the next one, which selects dropout's masks
  int64_t updates = 0;     // those that changed the parameters: PyTorch's `step` of adam; 0: sgd's momentum buffer is not initialized
  int skipped_in_row = 0;  // steps that were skipped last, for Engine::kMostSkipped
  double learning_rate = 0.0;
  std::optional<double> momentum;                       // of sgd, or beta1 of adam and adamw; none for sgd without momentum
  std::optional<std::pair<float, int32_t>> loss_scale;  // scale and growth tracker, where losses are scaled

  /// f32 values with the engine's layout() (FlatLayout::parameter_elements() of them).
  struct Flat {
    std::string name;
    HostBuffer memory;
    std::span<float> values();
    std::span<const float> values() const;
  };
  /// "parameters", then the optimizer's states by PyTorch's names: "momentum_buffer", or "exp_avg" and "exp_avg_sq"; then "average", where the engine
  /// averages its parameters (EngineConfig::ema_decay).
  std::vector<Flat> flats;
  BufferValues buffers;  // of the model, such as running statistics

  /// The flat buffer with this name, which exists.
  Flat& flat(const std::string& name);
  const Flat& flat(const std::string& name) const;
};

/// Names and bytes of the parts of a state: the host memory that a TrainingState takes, exactly.
///   averages  whether the engine averages its parameters
std::vector<std::pair<std::string, int64_t>> training_state_bytes(const FlatLayout& layout, const BufferLayout& buffers, const OptimizerConfig& optimizer,
                                                                  bool averages);

/// The files of a checkpoint: "model.safetensors" with parameters and buffers, which load_parameters() and PyTorch read, and "optimizer.safetensors" with
/// the optimizer's states as "PARAMETER.exp_avg" and so on, and the averages as "PARAMETER.average", in PyTorch's layouts.
///   scratch  largest_parameter(layout) elements; all arguments must outlive the result
///   metadata of the model's file
std::vector<CheckpointFile> checkpoint_files(const FlatLayout& layout, const BufferLayout& buffers, const TrainingState& state, std::span<float> scratch,
                                             const std::map<std::string, std::string>& metadata);
/// Fills the tensors of `state` from the files in a checkpoint's folder.
///   saved  the states that the checkpoint has beside the parameters. Others become zero, and averages become the parameters: so a new engine begins
/// throws  DataError for missing or unfit tensors
void read_checkpoint_files(const std::string& folder, const FlatLayout& layout, const BufferLayout& buffers, const std::vector<std::string>& saved,
                           TrainingState& state);

}  // namespace vitrine
