// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/step_control.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// How losses are scaled, so that small gradients do not vanish in f16.
struct LossScaling {
  enum class Kind {
    none,     // the scale is 1, and nothing is checked
    fixed,    // the scale stays; steps with non-finite gradients are skipped
    dynamic,  // as torch.cuda.amp.GradScaler
  } kind = Kind::none;
  double scale = 65536.0;     // at the start; 2^-126 to 2^126
  LossScaleConfig constants;  // of a dynamic scale: growth_factor > 1, 0 < backoff_factor < 1, growth_interval >= 1
  /// Below this scale there is nothing left to give: training has diverged.
  double floor = 1.0;

  bool active() const { return kind != Kind::none; }
};

/// One replica's loss scaler: the state lies on the device and is read and written there, in the order of the stream it is called with; what is kept
/// on the host is the order of calls. Once for each optimizer step, after the reduction:
///
///     unscale -> (clip) -> step -> update
///
/// Another order throws OrderError: clip or step before unscale, unscale or step twice, update before step.
class LossScaler {
 public:
  /// Allocates state and control (Category::optimizer). throws OutOfMemory; ConfigError on a scale or constants outside what LossScaling says.
  LossScaler(ExecContext& ctx, const LossScaling& scaling);

  /// (1) f32 for softmax_cross_entropy, or empty when losses are not scaled.
  View scale() const;
  /// (LossScaleState::kCount) f32, or empty: what replicas that do not update get from the one that does.
  View state() const { return state_; }

  /// Decides the step. gradients (n) f32: summed over all replicas. check: a non-finite gradient skips the step, and the norm is measured; always on
  /// with scaling. Phase::unscale.
  void unscale(ExecContext& ctx, float nominal, ConstView gradients, ConstView totals, bool check);
  /// After an unscale() with `check`.
  void clip(ExecContext& ctx, double max_norm);
  /// The control that the optimizer takes (kernels/optimizer.h).
  ConstView step();
  void update(ExecContext& ctx);
  /// (StepControl::kCount) f32: of the last step.
  ConstView control() const { return control_; }

  /// Gives up the step under way, if any.
  void reset() { stage_ = Stage::scaled; }
  /// The state of torch's state_dict(): scale and growth tracker. The stream must be idle after it.
  void set_state(ExecContext& ctx, float scale, int32_t growth_tracker);

 private:
  enum class Stage { scaled, unscaled, clipped, stepped };
  LossScaling scaling_;
  Tensor state_, control_;
  Stage stage_ = Stage::scaled;
  bool checked_ = false;
};

}  // namespace vitrine
