// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/device_plan.h>
#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parallel/state/parameters.h>
#include <vitrine/nn/parallel/state/training_checkpoint.h>
#include <vitrine/nn/parallel/step/output_exchange.h>
#include <vitrine/nn/parallel/step/step_result.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// How the work of training micro-batches after Engine::stage() was done where steps may be replayed as CUDA graphs:
/// launched as a graph, or issued operation by operation for one of these reasons.
struct GraphCounts {
  int64_t launched = 0;
  int64_t first_uses = 0;  // issued: one of the first two of its shape and its place in the step
  int64_t recorded = 0;    // issued: the history of the memory was being recorded (Pool::record_history)
  int64_t moved = 0;       // issued: memory was in use where the graph writes, or blocks lay elsewhere
  int64_t beyond = 0;      // issued: later in its step than EngineConfig::accumulate micro-batches
  int64_t failed = 0;      // issued: a graph could not be captured or launched, then or before

  int64_t issued() const { return first_uses + recorded + moved + beyond + failed; }
  /// "27 micro-batches as graphs, 3 issued: 2 first of their shape, 1 while the memory was recorded"; empty before the
  /// first micro-batch.
  std::string str() const;
};

/// What an engine has decided when it was constructed, for logs and reports.
struct EngineFacts {
  std::vector<DevicePlan> plans;  // of the devices
  BatchPlan batch;                // of a full batch
  ImageForm input_form;           // of the model's input; empty: as the images are (EngineConfig::input_packing)
  std::string communicator;       // that moves gradients, "NCCL 2.28.9, 2 ranks, ..."; empty with one device
  /// Whether steps are replayed as CUDA graphs, "after two steps of a shape", "off: REASON", or, when a
  /// graph could not be captured or launched, "off since step N: REASON"; empty without GPUs.
  std::string cuda_graphs;
  /// The plans in use by EngineConfig::autotune, the same on all processes; null without it.
  std::shared_ptr<const TunedPlans> tuned_plans;
  /// What the search of rank 0's process did; empty on other ranks, and without EngineConfig::autotune.
  AutotuneReport autotune;
};

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
  /// Private to nn/parallel: plans run the step of an engine whose own memory is not planned.
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  /// Waits for the devices. Never throws: call finish() to see errors.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

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
  /// in batch order. With several processes result and logits are of this process's part; no process waits for another,
  /// except for the parameters that others have updated (Scheme::shard) in the first evaluation after a step.
  StepResult evaluate(const HostBatch& batch, std::vector<float>* logits = nullptr);

  /// Requests an end: from this process's next step on StepResult::stop_votes counts it, the same in all processes.
  void vote_to_stop();

  int64_t steps_issued() const;
  void set_learning_rate(double lr);
  /// Sets the momentum of sgd, or beta1 of adam and adamw, from the next step on. throws ConfigError for sgd that was
  /// configured without momentum.
  void set_momentum(double momentum);
  /// Waits for all devices, and checks that the measured peak of each device's pool equals its plan when the whole
  /// workload was run (asserted).
  void finish();

  DeviceGroup& devices() const;
  const EngineConfig& config() const;
  const EngineFacts& facts() const;
  /// The planned peak of each device and what it consists of, a line each, with a heading.
  std::string plan_table() const;
  /// Parameters, buffers, averages and gradients, for the host.
  Parameters& parameters();
  /// The training state, to save and load.
  Checkpointer& checkpointer();
  /// How many micro-batches were replayed so far, and how many were issued, by reason. All 0 where
  /// EngineFacts::cuda_graphs is "off" or empty.
  GraphCounts graph_counts() const;

  // The parts of a training step, for EngineConfig::step. Each issues work on all devices and returns before it is
  // done; events order the streams. GPUs are issued by one thread each. Errors carry the device's name. All throw
  // OrderError outside a step that train_step() or planning has begun.

  /// The micro-batches of this step, as the configured split cuts the batch.
  const std::vector<MicroBatch>& micro_batches() const;
  /// Copies a micro-batch to the devices on their copy streams, by the scheme's staging, or gathers its images from
  /// EngineConfig::resident_images there.
  void stage(const HostBatch& batch, const MicroBatch& micro_batch);
  /// Calls `work`, which issues the rest of a micro-batch after stage(), or replays it as a CUDA graph without calling
  /// it (EngineConfig::cuda_graph). In a custom step: once for each micro-batch. `work` issues the same operations in
  /// each step of one shape, calls only the parts of a step below and kernels on the compute stream, with arguments
  /// that do not change from step to step.
  void replay_or_issue(const std::function<void()>& work);
  /// Turns each device's samples into the model's input, and runs the model on it.
  void forward();
  /// The scheme's loss, on each device or on the output device: cross-entropy of every target. Its gradient overwrites
  /// the outputs or gets its own memory (EngineConfig::loss_gradient_in_place); losses and counts are added to the
  /// totals.
  void loss();
  /// For a custom loss, instead of loss(): the outputs of forward(), and the way of their gradients to backward.
  OutputExchange& outputs();
  /// Runs the model backward; gradients add up over the micro-batches of a step. In the last one each replica's Reducer
  /// learns about finished gradients while backward is issued, and sums them over the replicas. With
  /// EngineConfig::update_in_backward it also does what decide_step() and update_parameters() do, and these do nothing.
  void backward_and_reduce(bool last);
  /// Completes the reduction: work that follows on devices which update parameters sees the sums.
  void finish_reduction();
  /// Decides on the devices whether the step is taken, and by which factor the update multiplies the summed gradients
  /// to get the mean over valid targets. Adapts a dynamic loss scale.
  void decide_step();
  /// Clips the norm of the mean gradient. throws OrderError unless decide_step() came before, or when the gradient is
  /// not checked (allow_non_finite without clip_norm and loss scaling).
  void clip_gradients(double max_norm);
  /// (StepControl::kCount) f32: what decide_step() and clip_gradients() decided on a device that updates parameters.
  ConstView step_control(int device) const;
  /// The gradients on a device, f32, flat as Parameters::layout().trained(), to read and to change on its compute
  /// stream: after finish_reduction() the sums on devices that update parameters. With Sharding::gradients those of the
  /// device's shard. throws ConfigError with EngineConfig::update_in_backward, which frees them
  View gradients(int device);
  /// Runs the optimizer, which also writes the 16-bit copy. throws OrderError before decide_step().
  void update_parameters();
  /// Brings the updated parameters to the replicas that did not make the update; with Scheme::shard the next forward()
  /// does, while it computes.
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
  /// throws ConfigError where gradients are sharded
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
  /// The state, within a training step. throws OrderError naming `part` outside one.
  State& in_step(const char* part) const;

  std::unique_ptr<State> state_;
};

/// The step of every scheme: nn/parallel/train_step.cpp, one page to copy and change.
void default_step(Engine& engine, const HostBatch& batch);

}  // namespace vitrine
