// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/nn/checkpoint.h>
#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/host_buffer.h>

namespace vitrine {

struct EngineSetup;
class Parameters;
class ReplicaGroup;
class StepWindow;

/// The single numbers of a TrainingState.
struct TrainingScalars {
  int64_t step = 0;  // optimizer steps so far: the number of the next one, which selects dropout's masks
  int64_t updates =
      0;  // those that changed the parameters: PyTorch's `step` of adam; 0: sgd's momentum buffer is not initialized
  int skipped_in_row = 0;  // steps that were skipped last, for kMostSkipped
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

/// The training state of an engine, to continue from later: an engine with the same configuration that loads it
/// computes the same bits as this one would. All functions but make_state() wait for the steps in flight, and throw
/// what these throw. All throw ConfigError in a forward-only engine.
class Checkpointer {
 public:
  Checkpointer(EngineSetup& setup, ReplicaGroup& replicas, StepWindow& window, Parameters& parameters)
      : setup_(setup), replicas_(replicas), window_(window), parameters_(parameters) {}
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// With several processes each copies its own replica, without waiting for the others; with Scheme::shard rank 0
  /// copies, and the others call share_state(). throws UnsupportedError if no device of this process updates the
  /// parameters, or in another process than rank 0 with Scheme::shard.
  TrainingState state();
  /// The same into memory that make_state() has allocated, so that nothing is allocated from then on: the streams stand
  /// still only for the copy. Write it to a folder with checkpoint_files() and write_checkpoint(), on another thread if
  /// you like.
  void copy_state(TrainingState& into);
  /// With several processes and Scheme::shard: sends rank 0, which copies the state, what this process owns of it.
  /// Otherwise returns at once.
  void share_state();
  /// Memory for a state of this engine, pinned for GPUs: training_state_bytes() of it. throws OutOfMemory.
  TrainingState make_state() const;
  /// Continues from a state: parameters, optimizer, counters, loss scale, learning rate and momentum of all replicas.
  /// Schemes, splits and devices may differ from those that made it; losses that are scaled here and were not there
  /// keep the configured scale. With several processes all call it, and rank 0's state is used. throws ConfigError for
  /// a state of another model or optimizer.
  void load_state(const TrainingState& state);
  /// The loss scaler's state alone, as in torch's state_dict(). throws OrderError when losses are not scaled.
  void set_loss_scale_state(float scale, int32_t growth_tracker);
  std::pair<float, int32_t> loss_scale_state();

 private:
  /// With several processes and Scheme::shard: fills in the states that other processes own, on rank 0. All call it.
  ///   into  null in the other processes
  void gather_states(TrainingState* into);
  /// Fills the optimizer's states and averages of all replicas; with several processes from rank 0's state.
  void set_optimizer_states(const TrainingState& state, int32_t updates);

  EngineSetup& setup_;
  ReplicaGroup& replicas_;
  StepWindow& window_;
  Parameters& parameters_;
};

/// Names and bytes of the flat buffers of a state: the host memory that a TrainingState takes, exactly.
std::vector<std::pair<std::string, int64_t>> training_state_bytes(const FlatLayout& layout, const BufferLayout& buffers,
                                                                  const EngineConfig& config);
/// Elements of the largest tensor of a checkpoint that is reordered to be written.
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
/// throws  DataError for missing or unfit tensors
void read_checkpoint_files(const std::string& folder, const FlatLayout& layout, const BufferLayout& buffers,
                           TrainingState& state);

}  // namespace vitrine
