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
#include <vitrine/nn/checkpoint.h>
#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/host_buffer.h>

namespace vitrine {

/// The single numbers of a TrainingState.
struct TrainingScalars {
  int64_t step = 0;  // optimizer steps so far: the number of the next one, which selects dropout's masks
  int64_t updates =
      0;  // those that changed the parameters: PyTorch's `step` of adam; 0: sgd's momentum buffer is not initialized
  int skipped_in_row = 0;  // steps that were skipped last, for Engine::kMostSkipped
  double learning_rate = 0.0;
  std::optional<double> momentum;  // of sgd, or beta1 of adam and adamw; none for sgd without momentum
  std::optional<std::pair<float, int32_t>> loss_scale;  // scale and growth tracker, where losses are scaled

  void take_scalars(const TrainingScalars& other) { *this = other; }
};

/// All that an engine carries from one step to the next, in host memory: what a checkpoint contains. Random numbers
/// need no separate state: they are functions of the seed and counters (Philox), of which `step` is the only one that
/// the engine counts; the order of samples depends on the epoch. The memory of a custom step or reducer
/// (EngineConfig::step, reducer) is not part of it.
struct TrainingState : TrainingScalars {
  std::vector<int64_t> counters;  // of the model's layers, in the order of BufferLayout::counters()

  /// f32 values with the engine's layout() or, for "buffers", that of buffer_layout().saved()
  /// (FlatLayout::parameter_elements() of them).
  struct Flat {
    std::string name;
    HostBuffer memory;
    std::span<float> values();
    std::span<const float> values() const;
  };
  /// "parameters", then the optimizer's states by PyTorch's names ("momentum_buffer", or "exp_avg" and "exp_avg_sq"),
  /// "ema" (the averages of the parameters) and "buffers" (running statistics), where the engine has them.
  std::vector<Flat> flats;

  /// The flat buffer with this name, which exists.
  Flat& flat(const std::string& name);
  const Flat& flat(const std::string& name) const;
  bool has_flat(const std::string& name) const;
  /// The names of the optimizer's states.
  std::vector<std::string> optimizer_states() const;
};

/// Names and bytes of the flat buffers of a state: the host memory that a TrainingState takes, exactly.
std::vector<std::pair<std::string, int64_t>> training_state_bytes(const FlatLayout& layout, const BufferLayout& buffers,
                                                                  const EngineConfig& config);
/// Elements of the largest tensor in the files of a checkpoint.
int64_t checkpoint_scratch_elements(const FlatLayout& layout, const BufferLayout& buffers);

/// The files of a checkpoint, with PyTorch's names and layouts:
///   model.safetensors      parameters, buffers and counters: load_parameters() and PyTorch read it
///   optimizer.safetensors  the optimizer's states, as "PARAMETER.exp_avg" and so on
///   ema.safetensors        the averages of the parameters, with the buffers and counters, as model.safetensors; where
///                          there are averages
///     scratch  checkpoint_scratch_elements() of them; all arguments must outlive the result      metadata  of the
///              weights' files
std::vector<CheckpointFile> checkpoint_files(const FlatLayout& layout, const BufferLayout& buffers,
                                             const TrainingState& state, std::span<float> scratch,
                                             const std::map<std::string, std::string>& metadata);
/// Fills the flat buffers and the counters of `state` from the files in a checkpoint's folder. Averages that the
/// checkpoint does not have start at the parameters.
///   optimizer  false: the optimizer's states become zero, as for another optimizer than the checkpoint's
/// throws  DataError for missing or unfit tensors
void read_checkpoint_files(const std::string& folder, const FlatLayout& layout, const BufferLayout& buffers,
                           TrainingState& state, bool optimizer = true);

}  // namespace vitrine
