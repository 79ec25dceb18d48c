// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// Sizes of the batches that a run will have: what has to be planned for.
struct Workload {
  std::vector<int64_t> train_batches;     // distinct sizes, the full one first
  std::vector<int64_t> evaluate_batches;  // distinct sizes of evaluation batches
  /// What they would be under another batch size or number of micro-batches, for advice when memory is short. Null: one full batch, and evaluation
  /// batches of a micro-batch if there are any.
  std::function<Workload(const EngineConfig&)> under = nullptr;
};

/// Totals of one optimizer step or one evaluation batch, over all devices.
struct StepResult {
  double loss_sum = 0;
  int64_t valid = 0;    // targets that were not ignored
  int64_t correct = 0;  // of them, predicted right
  // Of a step:
  double loss_scale = 1.0;                                          // that it was computed with
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  // of the mean gradient before clipping, where it is checked
  /// In an engine's first step, where gradients travel in 16 bits: ||their sum - their sum in f32|| / ||their sum in f32||.
  double reduction_error = std::numeric_limits<double>::quiet_NaN();
  int stop_votes = 0;     // processes that had voted for an end when they issued the step
  bool skipped = false;   // its loss or gradient was not finite, so that no device changed its parameters
  bool diverged = false;  // it stopped training: DivergedError was thrown, or is about to be
  /// Where the loss, the gradient or the update was not finite, what was the first: "the gradient of NAME" in backward's order; "the loss"; "the
  /// update"; of a step that stopped training "parameter NAME", "the input" or "the output of NAME", in forward's order, where one of them is not.
  std::string overflow;
  /// Mean loss over valid targets; NaN when there is none.
  double mean_loss() const;
};

/// What a layer (or, outside layers, a tensor) keeps in memory from its forward to its backward pass.
struct HeldBytes {
  std::string layer;
  int64_t bytes = 0;
};

/// Of a plan: the peaks, or also what layers hold and how memory changes over a step.
enum class PlanDetail { peaks, layers };

/// What a plan says of one device.
struct DevicePlan {
  int64_t peak_bytes = 0;
  BytesByCategory peak_by_category{};
  Phase peak_phase = Phase::setup;
  std::string peak_layer;

  // With PlanDetail::layers:
  std::vector<HeldBytes> held;  // activations at the end of the forward pass (of the micro-batch that holds most), in their order
  MemoryHistory history;        // of the setup, the first step and a steady one: a mark for each step
};

/// "phase backward of layer features.3".
std::string describe_peak(const DevicePlan& plan);

/// Trains one model data-parallel on a group of devices, under any scheme; with a process group (DeviceGroupOptions::process_group) together with the
/// engines of its other processes, which then are constructed, stepped and asked for totals alike. A failure of one is then the failure of all, for
/// good: CommError names the culprit.
///
/// Construction plans the workload on meta, takes one slab of the planned size from each device, and fills the parameters from the seed. When a
/// capacity is smaller it throws OutOfMemory naming device, tensor, layer and phase, what the device holds by then, and what would fit; nothing has
/// been taken then, and a smaller engine can be constructed on the same devices. Afterwards nothing on a device is allocated from the system.
/// Every scheme and split computes the single-device gradient: gradients are summed over samples and divided by the number of valid targets once.
class Engine {
 public:
  /// model and devices must outlive the engine. throws ConfigError, ShapeError, OutOfMemory.
  Engine(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload);
  /// Waits for the devices. Never throws: use finish() to learn of failures.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The plan alone, without touching the devices (DeviceGroup::planned() will do).
  static std::vector<DevicePlan> plan(const Model& model, const DeviceGroup& devices, const EngineConfig& config, const Workload& workload,
                                      PlanDetail detail = PlanDetail::peaks);

  /// Issues one optimizer step; returns before the devices have done it. At most two steps are in flight. throws the first error of any device,
  /// with its name; the engine can then go on from the parameters it had (of the last finished step). Where NCCL failed, or was
  /// aborted because a replica could not issue its work, GPUs' parameters may be those of half a step: set them anew. A GPU that is lost needs a new
  /// process.
  /// throws DivergedError when a loss or gradient was not finite (see EngineConfig::allow_non_finite), naming the step and the first layer; when the
  /// loss scale has fallen below its floor, or kMostSkipped steps in a row were skipped. Steps issued after that one have changed nothing and have no
  /// totals; the parameters are finite, and the next train_step() goes on from them. take_step_results(), evaluate() and whatever else waits for
  /// steps throws the same. throws ConfigError in a forward-only engine.
  void train_step(const HostBatch& batch);
  /// Totals of the steps finished since the last call, in order. With `wait`, of all steps issued.
  std::vector<StepResult> take_step_results(bool wait);

  /// Runs one batch forward without dropout; waits. logits, if not null: appended (one row of classes for each target), in batch order. With several
  /// processes totals and logits are of this process's part; no process waits for another.
  StepResult evaluate(const HostBatch& batch, std::vector<float>* logits = nullptr);

  /// Parameters as one flat host buffer in layout(); replicas are made equal by set.
  const FlatLayout& layout() const;
  void set_parameters(std::span<const float> flat);
  /// The f32 parameters; of a device that holds a 16-bit copy only, the 16-bit copy's values.
  std::vector<float> parameters(int device = 0);
  /// What the layers of a device see of them: the 16-bit copy in f16 and bf16, else the same.
  std::vector<float> working_parameters(int device = 0);
  /// The gradients of the last step on a device, before unscaling by valid targets (layout(), without the tail).
  std::vector<float> gradients(int device = 0);

  /// Compares the parameters of all devices of all processes, by hashes; waits. With several processes all call it. throws CommError naming the
  /// replica and the parameter that differ.
  void verify_replicas();
  /// This process wants to end: from its next step on Totals::stop_votes counts it, the same in all processes.
  void vote_to_stop();

  /// Waits for all devices, and checks that the measured peak of each device's pool equals its plan when the whole workload was run (asserted).
  void finish();

  const EngineConfig& config() const;
  const std::vector<DevicePlan>& device_plans() const;
  const BatchPlan& batch_plan() const;  // of a full batch
  /// Which communicator moves gradients, "NCCL 2.28.9, 2 ranks, ...": for logs. Empty with one device.
  std::string communicator() const;
  int64_t steps_issued() const;
  void set_learning_rate(double lr);
  /// The loss scaler's state, to go on from a checkpoint, as in torch's state_dict(). throws OrderError when losses are not scaled.
  void set_loss_scale_state(float scale, int32_t growth_tracker);
  std::pair<float, int32_t> loss_scale_state();
  static constexpr int kMostSkipped = 32;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
