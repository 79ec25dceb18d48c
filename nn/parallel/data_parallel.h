// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/kernels/cross_entropy.h>
#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/comm/communicator.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// The parts of a data-parallel step, one call each: replicas of a model on the devices of a group, and what moves between them. Engine puts them in
/// order; whoever wants another order calls them itself:
///
///     scatter -> forward -> (gather -> a loss of one's own -> set_output_gradients | loss) -> backward
///             -> reduce -> unscale -> (clip) -> update -> update_loss_scale -> broadcast
///
/// Every part issues work for all devices and returns before it is done; order between streams is kept by events. Parts that a scheme does not need
/// (broadcast under allreduce) do nothing. Several GPUs are issued by a thread each. Errors while issuing carry the device's name; errors of the
/// devices come from check().
class DataParallel {
 public:
  /// The largest numbers of samples that will come.
  struct Capacity {
    std::vector<int64_t> slice;  // of each device in one micro-batch
    int64_t micro_batch = 0;     // of all devices in one micro-batch
    int64_t evaluate_slice = 0;  // of any device in an evaluation batch
  };

  /// Allocates, on each device: parameters, gradients, optimizer state (where updates are made), staging buffers, workspace.
  /// throws OutOfMemory, ConfigError. model and devices must outlive it.
  DataParallel(const Model& model, DeviceGroup& devices, const EngineConfig& config, const Capacity& capacity);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Elements behind the gradients that are reduced with them: totals, and votes to stop.
  static constexpr int64_t kTail = LossTotals::kCount + 1;

  int size() const;
  const FlatLayout& layout() const;
  /// The communicators' description; empty with one device.
  std::string communicator() const;

  /// throws ConfigError when the configuration is forward_only; all parts of a step but forward(false) and evaluate() do.
  void require_training(const char* operation) const;

  /// Starts optimizer step `step`: totals become zero, the next backward overwrites the gradients.
  void begin_step(int64_t step);

  /// Brings rows [first, first + sum of sizes) of the batch to the devices, sizes[d] to device d, in device order, by the scheme's staging, and turns
  /// them into the model's input. The host's memory is read until the work is done.
  ///   position  of row `first` in the global batch, where that has rows on other processes; else it is `first`
  void scatter(const HostBatch& batch, std::span<const int64_t> sizes, int64_t first, std::optional<int64_t> position = {});
  /// Runs the model on every device's slice. Outputs: outputs(), one for each device, empty where it has no samples.
  void forward(bool training);
  const std::vector<Tensor>& outputs() const;  // of Model::logits_shape()
  /// All outputs, in batch order, on one device. The devices' own outputs stay; in training, that of the scheme's output device, where outputs are
  /// gathered for the loss, is a part of what the first call returns.
  Tensor gather(int device);
  /// Gradients of the last gather(), shape and dtype as it: their rows go back to the devices, in place of the outputs or apart (EngineConfig). On
  /// `device` backward() works on those given, whose content is lost.
  ///   scale  the gradient of the SUM of all targets' losses, times 1 / (EngineConfig::batch_size * Model::targets_per_sample), the nominal number of
  ///          targets of the whole optimizer step (of all devices, processes and micro-batches, not of this batch), times *loss_scale(device) where
  ///          that is not empty. unscale() turns the sum over devices into the mean over the valid targets that add_totals() counts.
  void set_output_gradients(const Tensor& gradients, int device);
  /// Adds totals (LossTotals::kCount, f32) of a loss of your own, computed on `device`, to those that the reduction sums: update() divides by their
  /// count of valid targets, and a sum of losses that is not finite stops training. Digits of counts are added as they are (see LossTotals).
  void add_totals(const Tensor& totals, int device);
  /// The scheme's loss: cross-entropy of every target, on each device or on the output device; its gradient, scaled by 1 / batch_size of the
  /// configuration, takes the place of the outputs or lies apart. Losses and counts add up in the totals.
  void loss();
  /// Runs the model backward from the outputs' gradients; gradients add up over calls since begin_step(). With `last`, gradients are reduced
  /// as they become ready (allreduce), unless a NoReductionScope is open.
  void backward(bool last);
  /// Sums gradients and totals over the devices, by the scheme's reduction. Work that follows on the devices sees the sums.
  void reduce();
  /// Decides the step where updates are made (on all devices or on device 0): what makes the summed gradient the mean over valid targets, and whether
  /// loss and gradient are finite; if not, EngineConfig::non_finite() says what becomes of the step, everywhere.
  void unscale();
  /// After a step that stopped training (StepControl::kStopped, see read_step()): the next step may be taken again.
  void resume();
  /// Clips the mean gradient's norm. throws OrderError unless unscale() came before, or when the gradient is not checked (allow_non_finite without
  /// clip_norm and loss scaling)
  void clip(double max_norm);
  /// Updates the parameters, and makes the 16-bit copy anew. throws OrderError before unscale().
  void update();
  /// throws OrderError before update().
  void update_loss_scale();
  /// Under gpu0: device 0's parameters, or their 16-bit copy, and the loss scale go to all devices.
  void broadcast();

  /// Gradients stay on their devices while one is open: for accumulation over several steps.
  class NoReductionScope {
   public:
    explicit NoReductionScope(DataParallel& parallel);
    ~NoReductionScope();
    NoReductionScope(const NoReductionScope&) = delete;
    NoReductionScope& operator=(const NoReductionScope&) = delete;

   private:
    DataParallel& parallel_;
    bool previous_;
  };

  /// Forward without training on every device's slice, with loss and predictions counted into totals of its own.
  void evaluate(const HostBatch& batch, std::span<const int64_t> sizes);
  /// Copies what each device's evaluation found to the host: totals (LossTotals::kCount each) and, if not null, the outputs in batch order.
  void read_evaluation(std::span<float> totals_of_devices, float* outputs);

  /// While on, and gradients travel in 16 bits, they travel in f32 too, and the two sums are compared.
  void measure_reduction(bool on);
  /// ||sum in 16 bits - sum in f32|| and ||sum in f32||, of device 0, to host memory (2) f32.
  void read_reduction_error(View host);

  /// While on, forward() in training searches parameters, inputs and the outputs of all parts of the model, in this order, for the first that is not
  /// finite: slow, to find out why a loss is not.
  void watch_for_non_finite(bool on);
  /// What was found since begin_step(), of each device, to host memory (devices) i32: -1, or a number that describe_non_finite() explains; the
  /// smallest of several devices came first.
  void read_non_finite(View host);
  /// "parameter NAME", "the input", or "the output of NAME".
  std::string describe_non_finite(int32_t found) const;

  /// From the next begin_step() on this process votes for an end: its votes are summed with the totals, so that all processes see them at one step.
  void vote_to_stop();
  /// Copies tail (kTail: totals, then votes) and control of the step (device 0's, after update()) to host memory.
  void read_step(View tail, View control);
  void record_step_done(int slot);
  void wait_step_done(int slot);

  /// With several processes all of them call it, and rank 0's values go to all.
  void set_parameters(std::span<const float> flat);
  /// A hash of each parameter on a device, in layout(): of the f32 parameters, or of the 16-bit copy where some device has no others.
  std::vector<uint64_t> parameter_hashes(int device);
  /// The f32 parameters; of a device that holds a 16-bit copy only, the 16-bit copy's values.
  std::vector<float> parameters(int device);
  /// What layers see of them.
  std::vector<float> working_parameters(int device);
  std::vector<float> gradients(int device);
  void set_learning_rate(double lr);
  /// (1) f32 on the device: what a loss of one's own multiplies its gradient by; empty when losses are not scaled.
  View loss_scale(int device) const;
  /// Scale and growth tracker. throws OrderError when losses are not scaled.
  void set_loss_scale_state(float scale, int32_t growth_tracker);
  std::pair<float, int32_t> loss_scale_state(int device);

  /// True when an operation has failed on some device.
  bool failed() const;
  /// Wakes everybody that waits for a peer, waits for all devices, throws away what was under way, and makes the parts usable again. Returns the root
  /// cause with its device's name put before it, or null when nothing had failed. `known`, the reason to give up if there is one already, is it
  /// unless it only is the echo of another. With several processes a failure is for good, and told to the others.
  std::exception_ptr recover(const std::exception_ptr& known = nullptr);

  static constexpr int kStepSlots = 3;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
