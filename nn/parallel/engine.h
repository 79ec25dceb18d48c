// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/kernels/workspace.h>
#include <vitrine/nn/buffer_layout.h>
#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parallel/optional/graph_counts.h>
#include <vitrine/nn/parallel/process_part.h>
#include <vitrine/nn/parallel/state/training_checkpoint.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// Sizes of the batches that a run will have: what has to be planned for.
struct Workload {
  std::vector<int64_t> train_batches;     // distinct sizes, the full one first
  std::vector<int64_t> evaluate_batches;  // distinct sizes of evaluation batches
  /// The workload under another batch size or number of micro-batches, for advice when memory is short. Null: one full
  /// batch, and evaluation batches of a micro-batch if there are any.
  std::function<Workload(const EngineConfig&)> under = nullptr;
  /// Asked before each plan of a search (nn/parallel/plan/plan_search.h), also of the one for advice when memory is
  /// short: true ends the search with SearchStopped. Null: searches run to completion.
  std::function<bool()> stop = nullptr;
};

/// Workload::stop ended a search for configurations that fit.
class SearchStopped : public std::exception {
 public:
  const char* what() const noexcept override { return "the search for a configuration that fits was stopped"; }
};

/// Results of one optimizer step or one evaluation batch, over all devices.
struct StepResult {
  double loss_sum = 0;
  int64_t valid = 0;    // targets that were not ignored
  int64_t correct = 0;  // valid targets that were predicted right
  int64_t top5 = 0;     // valid targets among the five largest outputs
  // Of a step:
  double loss_scale = 1.0;  // with which it was computed
  double gradient_norm =
      std::numeric_limits<double>::quiet_NaN();  // of the mean gradient before clipping; NaN where it is not checked
  /// In an engine's first step, when gradients are reduced in 16 bits: ||their sum - their sum in f32|| / ||their sum
  /// in f32||.
  double reduction_error = std::numeric_limits<double>::quiet_NaN();
  int stop_votes = 0;     // processes that had called vote_to_stop() when they issued the step
  bool skipped = false;   // no device changed its parameters, because the loss or gradient was not finite
  bool diverged = false;  // it stopped training: DivergedError was thrown, or is about to be
  /// The first thing that was not finite, if any: "the gradient of NAME" in backward's order; "the loss"; "the update";
  /// in a step that stopped training "parameter NAME", "the input" or "the output of NAME", in forward's order, where
  /// one of them is not finite.
  std::string overflow;
  /// Mean loss over valid targets; NaN when there is none.
  double mean_loss() const;
};

/// What a layer (or, outside layers, a tensor) keeps in memory from its forward to its backward pass.
struct HeldBytes {
  std::string layer;
  int64_t bytes = 0;
};

/// What a plan contains: the peaks, or also what layers hold and how memory changes over a step.
enum class PlanDetail { peaks, layers };

/// The arena of each compute stream. A plan that sizes it asks the libraries for the best algorithms of the model's
/// convolutions and products, within the capacity of the device that has least room, and not below kLeastCpuWorkspace
/// or kLeastGpuWorkspace.
struct WorkspacePlan {
  int64_t bytes = 0;
  int64_t least_bytes = 0;  // the least size, on devices with less memory; `bytes` if that was given or cannot shrink
  std::vector<WorkspaceShortage> shortages;  // what runs by another algorithm than the best, because the arena shrank
  Reason unknown;                            // why cuDNN could not be asked
};
/// GPUs: what cuBLASLt's documentation recommends for compute capability 9.0. CPU devices get at most
/// kMostCpuWorkspace.
inline constexpr int64_t kLeastGpuWorkspace = int64_t{32} << 20, kLeastCpuWorkspace = int64_t{1} << 20,
                         kMostCpuWorkspace = int64_t{32} << 20;
/// For GPUs whose cuDNN cannot be asked.
inline constexpr int64_t kUnaskedGpuWorkspace = int64_t{256} << 20;

/// The plan of one device.
struct DevicePlan {
  int64_t peak_bytes = 0;
  BytesByCategory peak_by_category{};  // as in PoolStatistics
  Phase peak_phase = Phase::setup;
  std::string peak_layer;
  int64_t unplaced_peak_bytes = 0;                 // of the pool's allocator without the placement
  std::shared_ptr<const PoolPlacement> placement;  // where each block lies; devices with the same blocks share it
  WorkspacePlan workspace;                         // the same on all devices

  // With PlanDetail::layers:
  std::vector<HeldBytes>
      held;  // activations at the end of the forward pass (of the micro-batch that holds most), in their order
  MemoryHistory history;  // of the setup, the first step and a steady one: a mark for each step
};

/// "phase backward of layer features.3".
std::string describe_peak(const DevicePlan& plan);

/// Trains one model data-parallel on a group of devices, under any scheme. With a process group
/// (DeviceGroupOptions::process_group) it trains together with the engines of the other processes, which must be
/// constructed, stepped and asked for results in the same way. A failure of one process is then the failure of all, for
/// good: CommError names the culprit.
///
/// Construction plans the workload on meta devices, takes one slab of the planned size from each device, and
/// initializes the parameters from the seed. When a capacity is too small it throws OutOfMemory with device, tensor,
/// layer and phase, what the device holds at that point, and what would fit; nothing has been taken then, and a smaller
/// engine can be constructed on the same devices. Afterwards nothing on a device is allocated from the system. Every
/// scheme and split computes the single-device gradient: gradients are summed over samples and divided by the number of
/// valid targets once.
class Engine {
 public:
  /// model and devices must outlive the engine. throws ConfigError, ShapeError, OutOfMemory.
  Engine(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload);
  /// Waits for the devices. Never throws: call finish() to see errors.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The plan alone, without touching the devices (DeviceGroup::planned() will do).
  static std::vector<DevicePlan> plan(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                      const Workload& workload, PlanDetail detail = PlanDetail::peaks);

  /// The form in which the devices write the model's input (EngineConfig::input_packing); empty: as the images are.
  static ImageForm input_form(const Model& model, const DeviceGroup& devices, const EngineConfig& config);

  /// EngineConfig::workspace_bytes, or without it what plan() makes it on devices with unlimited memory.
  static int64_t full_workspace_bytes(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                      const Workload& workload);

  /// Issues one optimizer step; returns before the devices have done it. At most two steps are in flight. throws the
  /// first error of any device, with its name; the engine can then continue from the parameters of the last finished
  /// step. After a failure of NCCL, or an abort because a replica could not issue its work, GPUs may hold the
  /// parameters of half a step: set them again. A lost GPU needs a new process. throws DivergedError when a loss or
  /// gradient was not finite (see EngineConfig::allow_non_finite), with the step and the first layer; when the loss
  /// scale has fallen below its floor, or kMostSkipped steps in a row were skipped. Steps issued after that one have
  /// changed nothing and have no results; the parameters are finite, and the next train_step() continues from them.
  /// take_step_results(), evaluate() and everything else that waits for steps throws the same. throws ConfigError in a
  /// forward-only engine.
  void train_step(const HostBatch& batch);
  /// Results of the steps finished since the last call, in order. With `wait`, of all steps issued.
  std::vector<StepResult> take_step_results(bool wait);

  /// Runs one batch forward without dropout; waits. logits, if not null: appended (one row of classes for each target),
  /// in batch order. With several processes result and logits are of this process's part; no process waits for another.
  StepResult evaluate(const HostBatch& batch, std::vector<float>* logits = nullptr);

  /// Parameters as one flat host buffer in layout(). set_parameters() makes all replicas equal; with several processes
  /// all call it, and rank 0's values are used.
  const FlatLayout& layout() const;
  void set_parameters(std::span<const float> flat);
  /// Saved buffers, such as running statistics, as set_parameters() sets parameters. Between steps all replicas hold
  /// the same. Steps that were in flight when training diverged have updated them, but never with a value that is not
  /// finite; after a failure they are those of device 0.
  const BufferLayout& buffer_layout() const;
  void set_buffers(const BufferValues& values);
  BufferValues buffers(int device = 0);
  /// The f32 parameters; of a device that holds only the 16-bit copy, the copy's values.
  std::vector<float> parameters(int device = 0);
  /// What the layers of a device see: the 16-bit copy in f16 and bf16, else the f32 parameters.
  std::vector<float> working_parameters(int device = 0);
  /// The averages of the parameters (EngineConfig::ema_decay), in layout(): a state of training beside the optimizer's.
  /// set_parameters() starts them at the parameters; with several processes all call set_averages() with the same
  /// values. throws ConfigError in an engine without averages.
  std::vector<float> averages(int device = 0);
  void set_averages(std::span<const float> flat);
  /// The gradients of the last step on a device (layout(), without the tail): of the sum of losses, divided by
  /// nominal_targets() and multiplied by the loss scale. Where every target is valid and losses are not scaled, that is
  /// the gradient of the mean loss. Reduced gradients are sums over all devices.
  std::vector<float> gradients(int device = 0);

  /// Compares the parameters and saved buffers of all devices of all processes, by hashes; waits. With several
  /// processes all call it. throws CommError naming the replica and the parameter that differ.
  void verify_replicas();
  /// Requests an end: from this process's next step on StepResult::stop_votes counts it, the same in all processes.
  void vote_to_stop();

  /// Waits for all devices, and checks that the measured peak of each device's pool equals its plan when the whole
  /// workload was run (asserted).
  void finish();

  const Model& model() const;
  DeviceGroup& devices() const;
  const EngineConfig& config() const;
  const std::vector<DevicePlan>& device_plans() const;
  const BatchPlan& batch_plan() const;  // of a full batch
  /// Description of the communicator that moves gradients, "NCCL 2.28.9, 2 ranks, ...": for logs. Empty with one
  /// device.
  std::string communicator() const;
  /// Whether steps are replayed as CUDA graphs, "after two steps of a shape" or "off: REASON": for logs. Empty without
  /// GPUs.
  std::string cuda_graphs() const;
  /// input_form() of this engine.
  ImageForm input_form() const;
  /// How many micro-batches were replayed so far, and how many were issued, by reason. All 0 where cuda_graphs() is
  /// "off" or empty.
  GraphCounts graph_counts() const;
  /// The plans in use by EngineConfig::autotune, the same on all processes; null without it.
  const std::shared_ptr<const TunedPlans>& tuned_plans() const;
  /// What the search of rank 0's process did; empty on other ranks, and without EngineConfig::autotune.
  const AutotuneReport& autotune_report() const;
  int64_t steps_issued() const;
  void set_learning_rate(double lr);
  /// Sets the momentum of sgd, or beta1 of adam and adamw, from the next step on. throws ConfigError for sgd that was
  /// configured without momentum.
  void set_momentum(double momentum);
  /// The loss scaler's state, to continue from a checkpoint, as in torch's state_dict(). throws OrderError when losses
  /// are not scaled.
  void set_loss_scale_state(float scale, int32_t growth_tracker);
  std::pair<float, int32_t> loss_scale_state();
  static constexpr int kMostSkipped = 32;

  /// The training state, to continue from later: an engine with the same configuration that loads it computes the same
  /// bits as this one would. Waits for the steps issued. With several processes each copies its own replica, without
  /// waiting for the others. throws what a failed or diverged step throws; ConfigError in a forward-only engine;
  /// UnsupportedError if no device of this process updates the parameters.
  TrainingState state();
  /// The same into memory that make_state() has allocated, so that nothing is allocated from then on: the streams stand
  /// still only for the copy. Write it to a folder with checkpoint_files() and write_checkpoint(), on another thread if
  /// you like.
  void copy_state(TrainingState& into);
  /// Memory for a state of this engine, pinned for GPUs: training_state_bytes() of it. throws OutOfMemory.
  TrainingState make_state() const;
  /// Continues from a state: parameters, optimizer, counters, loss scale, learning rate and momentum of all replicas.
  /// Schemes, splits and devices may differ from those that made it; losses that are scaled here and were not there
  /// keep the configured scale. With several processes all call it, and rank 0's state is used. throws ConfigError for
  /// a state of another model or optimizer.
  void load_state(const TrainingState& state);

  // The parts of a training step, for EngineConfig::step. Each issues work on all devices and returns before it is
  // done; events order the streams. GPUs are issued by one thread each. Errors carry the device's name. All throw
  // OrderError outside a step that train_step() or planning has begun.

  /// The step of every scheme: nn/parallel/train_step.cpp, one page to copy and change.
  static void default_step(Engine& engine, const HostBatch& batch);

  /// The micro-batches of this step, as the configured split cuts the batch.
  const std::vector<MicroBatch>& micro_batches() const;
  /// Copies a micro-batch to the devices on their copy streams, by the scheme's staging, or gathers its images from
  /// EngineConfig::resident_images there, and turns it into the model's input.
  void stage(const HostBatch& batch, const MicroBatch& micro_batch);
  /// Calls `work`, which issues the rest of a micro-batch after stage(), or replays it as a CUDA graph without calling
  /// it (EngineConfig::cuda_graph). In a custom step: once for each micro-batch. `work` issues the same operations in
  /// each step of one shape, calls only the parts of a step below and kernels on the compute stream, with arguments
  /// that do not change from step to step.
  void replay_or_issue(const std::function<void()>& work);
  /// Runs the model on each device's samples.
  void forward();
  /// What forward() computed on a device, of Model::logits_shape(); empty where it has no samples.
  const Tensor& output(int device) const;
  /// The scheme's loss, on each device or on the output device: cross-entropy of every target. Its gradient overwrites
  /// the outputs or gets its own memory (EngineConfig::loss_gradient_in_place); losses and counts are added to the
  /// totals.
  void loss();
  /// For a custom loss, instead of loss(): copies all outputs, in batch order, to one device. The devices keep their
  /// own outputs.
  Tensor gather_outputs(int device);
  /// For a custom loss: the gradient of what gather_outputs(device) returned, same shape and dtype. Its rows go back to
  /// the devices. On `device` backward works on them in place.
  ///   gradients  of the SUM of all targets' losses, times 1 / nominal_targets(), times *loss_scale(device) where that
  ///              is not empty. decide_step() turns the sum over devices into the mean over the valid targets that
  ///              add_totals() counts.
  void set_output_gradients(const Tensor& gradients, int device);
  /// For a custom loss, before backward: adds totals (LossTotals::kCount, f32) on `device` to those that are reduced
  /// with the gradients. The update divides by their count of valid targets; a sum of losses that is not finite stops
  /// training.
  void add_totals(const Tensor& totals, int device);
  /// Targets of a whole optimizer step, of all devices, processes and micro-batches, valid or not.
  int64_t nominal_targets() const;
  /// (1) f32 on the device: the factor of a loss's gradient; empty when losses are not scaled.
  View loss_scale(int device) const;
  /// Runs the model backward; gradients add up over the micro-batches of a step. In the last one each replica's Reducer
  /// learns about finished gradients while backward is issued, and sums them over the replicas.
  void backward_and_reduce(bool last);
  /// Completes the reduction: work that follows on devices which update parameters sees the sums.
  void finish_reduction();
  /// Decides on the devices whether the step is taken, and by which factor the update multiplies the summed gradients
  /// to get the mean over valid targets.
  void decide_step();
  /// Clips the norm of the mean gradient. throws OrderError unless decide_step() came before, or when the gradient is
  /// not checked (allow_non_finite without clip_norm and loss scaling).
  void clip_gradients(double max_norm);
  /// (StepControl::kCount) f32: what decide_step() and clip_gradients() decided on a device that updates parameters.
  ConstView step_control(int device) const;
  /// Runs the optimizer, which also writes the 16-bit copy. throws OrderError before decide_step().
  void update_parameters();
  /// Adapts the loss scale. throws OrderError before update_parameters().
  void update_loss_scale();
  /// Brings the updated parameters to the replicas that did not make the update.
  void distribute_parameters();

  /// While one is open, the averages of the parameters are in the parameters' place: evaluate(), parameters() and
  /// working_parameters() see them. Takes no memory. With several processes all open it. Waits for steps in flight, and
  /// throws what they throw; ConfigError in an engine without averages; OrderError when one is open. train_step()
  /// throws OrderError meanwhile.
  class AverageScope {
   public:
    explicit AverageScope(Engine& engine);
    ~AverageScope();
    AverageScope(const AverageScope&) = delete;
    AverageScope& operator=(const AverageScope&) = delete;

   private:
    Engine& engine_;
  };

  /// While one is open, no gradients are reduced: they stay on their devices and add up.
  class NoReductionScope {
   public:
    explicit NoReductionScope(Engine& engine);
    ~NoReductionScope();
    NoReductionScope(const NoReductionScope&) = delete;
    NoReductionScope& operator=(const NoReductionScope&) = delete;

   private:
    Engine& engine_;
    bool previous_;
  };

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  /// Begins a step, runs EngineConfig::step or default_step(), and copies its results to record `slot`.
  ///   samples  of the global batch
  void issue(const HostBatch& batch, int64_t samples, int slot);
  /// The state, when no step is in flight and no AverageScope open. throws ConfigError in an engine without averages.
  State& with_averages(const char* operation) const;
  /// The state, within a training step. throws OrderError naming `part` outside one.
  State& in_step(const char* part) const;

  std::unique_ptr<State> state_;
};

}  // namespace vitrine
