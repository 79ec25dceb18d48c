// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/step_control.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Scaling of losses, which keeps small f16 gradients from underflowing.
struct LossScaling {
  enum class Kind {
    none,     // the scale is 1
    fixed,    // constant scale; steps with non-finite gradients are skipped
    dynamic,  // as torch.cuda.amp.GradScaler
  } kind = Kind::none;
  double scale = 65536.0;     // initial scale; 2^-126 to 2^126
  LossScaleConfig constants;  // of a dynamic scale: growth_factor > 1, 0 < backoff_factor < 1, growth_interval >= 1
  /// A scale below this means that training has diverged.
  double floor = 1.0;

  bool active() const { return kind != Kind::none; }
};

/// The loss scaler of a replica. Its state is on the device and is read and written there, in stream order; the host
/// only tracks the order of calls. Call once per optimizer step, after the reduction:
///
///     decide_step -> (clip_gradients) -> step
///
/// Another order throws OrderError: clip_gradients or step before decide_step, decide_step or step twice.
class LossScaler {
 public:
  /// Allocates state and control (Category::optimizer).   throws  OutOfMemory; ConfigError when the scale or a constant
  /// is out of LossScaling's range
  LossScaler(ExecContext& ctx, const LossScaling& scaling);

  /// (1) f32 for softmax_cross_entropy, or empty when losses are not scaled.
  View scale() const;
  /// (LossScaleState::kCount) f32, or empty: replicas that do not update parameters receive it from the one that does.
  View state() const { return state_; }

  /// Decides whether the step is taken, and the factor by which the update multiplies gradients. gradients (n) f32:
  /// summed over all replicas. With scaling, NonFinite::accept becomes NonFinite::skip. Measures the norm of the
  /// gradient unless non-finite steps are accepted. Counts the update if `count` has a step. Adapts a dynamic scale for
  /// the next step. Phase::decide. squared: elements that need not be read again for that.
  void decide_step(ExecContext& ctx, double nominal, ConstView gradients, ConstView totals, NonFinite non_finite,
                   const UpdateCount& count = {}, const SquaredElements& squared = {});
  /// After a decide_step() that measured the norm.
  void clip_gradients(ExecContext& ctx, double max_norm);
  /// Returns the control that the optimizer takes (kernels/optimizer.h).
  View step();
  /// (StepControl::kCount) f32: the decisions of the last step.
  View control() const { return control_; }

  /// After NonFinite::stop has stopped training: allows the next step.
  void resume(ExecContext& ctx);

  /// Discards the current step, if any.
  void reset() { stage_ = Stage::summed; }
  /// Sets the state of torch's state_dict(): scale and growth tracker. Waits for the stream.
  void set_state(ExecContext& ctx, float scale, int32_t growth_tracker);

 private:
  enum class Stage { summed, decided, clipped };
  LossScaling scaling_;
  Tensor state_, control_;
  Stage stage_ = Stage::summed;
  bool checked_ = false;
};

}  // namespace vitrine
