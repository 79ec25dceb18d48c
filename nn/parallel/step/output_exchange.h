// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

struct EngineSetup;
struct Replica;
class ReplicaGroup;

/// From the outputs of all devices to the loss, and back to the gradients of the outputs.
class OutputExchange {
 public:
  OutputExchange(const EngineSetup& setup, ReplicaGroup& replicas);
  OutputExchange(const OutputExchange&) = delete;
  OutputExchange& operator=(const OutputExchange&) = delete;

  // For a custom loss:
  /// What forward() computed on a device, of Model::logits_shape(); empty where it has no samples.
  const Tensor& on_device(int device) const;
  /// Copies all outputs, in batch order, to one device. The devices keep their own outputs.
  Tensor gather(int device);
  /// Sends the rows of the gradient of what gather(device) returned, of the same shape and dtype, back to the devices.
  /// On `device` backward works on them in place.
  ///   gradients  of the SUM of all targets' losses, times 1 / nominal_targets(), times *loss_scale(device) where that
  ///              is not empty. Engine::decide_step() turns the sum over devices into the mean over the valid targets
  ///              that add_totals() counts.
  void scatter(const Tensor& gradients, int device);
  /// Instead of gather() and scatter(), on each device with samples: the gradient of on_device(device), of the same
  /// shape and dtype on that device, and otherwise as for scatter(). Backward works on it in place. It may be
  /// on_device(device) itself, overwritten, if may_overwrite() says so. throws ShapeError, DtypeError, DeviceError
  void set_gradient(int device, const Tensor& gradient);
  /// Whether a gradient may overwrite the outputs: the model's last part does not need them in backward, and
  /// EngineConfig::loss_gradient_in_place is set.
  bool may_overwrite() const { return gradient_over_output_; }
  /// The targets of on_device(device), Model::label_shape() i32; with LossAt::gathered those of all outputs on the
  /// output device, and empty on the others.
  ConstView targets(int device) const;
  /// Before backward: adds totals (LossTotals::kCount, f32) on `device` to those that are reduced with the gradients.
  /// The update divides by their count of valid targets; a sum of losses that is not finite stops training.
  void add_totals(const Tensor& totals, int device);
  /// Targets of a whole optimizer step, of all devices, processes and micro-batches, valid or not.
  int64_t nominal_targets() const;
  /// (1) f32 on the device: the factor of a loss's gradient; empty when losses are not scaled.
  View loss_scale(int device) const;

  // For the engine:
  /// Memory for the outputs of the scheme's output device if outputs are gathered: its rows of all of them. Otherwise
  /// an empty tensor.
  Tensor allocate_output(Replica& r);
  /// The scheme's loss, on each device or on the output device.
  void compute_loss();
  /// Cross-entropy of the replica's outputs in evaluation.
  void evaluate_loss(Replica& r);
  /// On the device that scattered them: frees the gradients of all outputs once all devices have taken their rows.
  void release_scattered(Replica& r);
  /// Drops the gradients of all outputs of a micro-batch that is not finished.
  void forget_scattered() { scattered_ = Tensor(); }

 private:
  struct DeviceEvents {
    std::unique_ptr<Event> outputs_ready;    // compute: forward is done
    std::unique_ptr<Event> loss_ready;       // compute of the output device: the outputs' gradients are computed
    std::unique_ptr<Event> outputs_read;     // compute of the output device: the outputs are gathered
    std::unique_ptr<Event> gradients_taken;  // compute: the gradients of its outputs have arrived
  };
  /// Cross-entropy of `logits`; gradients may be empty.
  void compute_loss(Replica& r, const Tensor& logits, const Tensor& targets, const View& gradients, const View& totals);
  /// Calls compute_loss() for each leaf of the replicas [begin, end), in order.
  ///   totals_of(leaf number)
  template <class TotalsOf>
  void compute_loss_by_leaf(Replica& r, int begin, int end, const Tensor& logits, const Tensor& gradients,
                            const TotalsOf& totals_of);
  void make_events();
  DeviceEvents& events_of(const Replica& r);
  /// logits_shape() of the current micro-batch on all devices.
  Shape all_logits_shape() const;

  const EngineSetup& setup_;
  ReplicaGroup& replicas_;
  bool gradient_over_output_;  // the gradient of the outputs overwrites them
  std::vector<DeviceEvents> events_;
  Tensor scattered_;  // gradients of all outputs, until all devices have taken their rows
  int scattered_from_ = 0;
};

}  // namespace vitrine
