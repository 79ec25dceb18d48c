// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include <vitrine/runtime/exec_context.h>

/// What is decided between the reduction of the gradients and the update of the parameters: whether the step is taken, and what the summed gradient
/// is multiplied by. All of it is decided on the device, so that no step waits for the host:
///
///     check_gradients (unless non-finite steps are accepted) -> decide_step -> clip_gradients -> an update
///     (kernels/optimizer.h) -> update_loss_scale
///
/// Gradients are never rewritten: the update multiplies as it reads them.
namespace vitrine {

/// What becomes of a step whose loss or gradient is not finite.
enum class NonFinite : uint8_t {
  accept,  // it is taken, and the parameters become non-finite too, as in PyTorch; nothing is checked
  skip,    // a non-finite gradient skips the step
  stop,    // a non-finite loss or gradient stops training: this step and all later ones change nothing. With a loss scale a non-finite gradient
           // behind a finite loss only skips the step. Updates keep parameters finite.
};

/// A view (kCount) f32 that travels from one of these operations to the next, and from step to step. Zero at first.
struct StepControl {
  static constexpr int64_t kFactor = 0;          // the update multiplies the summed gradient by it
  static constexpr int64_t kActive = 1;          // 1: the step is taken; 0: nothing changes
  static constexpr int64_t kSkipped = 2;         // 1: it is not, because the loss or the gradient is not finite
  static constexpr int64_t kNorm = 3;            // 2-norm of the mean gradient before clipping; NaN where it was not checked
  static constexpr int64_t kLossScale = 4;       // that the step was computed with
  static constexpr int64_t kFirstNonFinite = 5;  // bits of an i32: position of the first infinity or NaN in the gradient, modulo 2^30; -1: none
  static constexpr int64_t kStopped = 6;         // 0, or why training is stopped: kByLoss, kByGradient, kByUpdate; stays until the caller zeroes it
  static constexpr int64_t kKeepsFinite = 7;     // 1: an element whose update is not finite keeps its value, and the update sets kStopped
  static constexpr int64_t kFirstNonFiniteHigh = 8;  // bits of an i32: that position divided by 2^30
  static constexpr int64_t kCount = 16;              // the rest is zero

  static constexpr float kByLoss = 1.0F, kByGradient = 2.0F, kByUpdate = 3.0F;
};
/// Position of the first infinity or NaN in the gradient that was checked, or -1.
inline int64_t first_non_finite(std::span<const float> control) {
  const auto low = std::bit_cast<int32_t>(control[StepControl::kFirstNonFinite]);
  return low < 0 ? -1 : (int64_t{std::bit_cast<int32_t>(control[StepControl::kFirstNonFiniteHigh])} << 30) + low;
}

/// The loss scaler's state, a view (kCount) f32.
struct LossScaleState {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kGrowthTracker = 1;  // steps without an overflow since the scale last changed; a whole number
  static constexpr int64_t kCount = 2;
};

/// Constants of dynamic loss scaling; the defaults are torch.cuda.amp.GradScaler's.
struct LossScaleConfig {
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int32_t growth_interval = 2000;
};

inline constexpr int64_t kCheckGradientsWorkspaceBytes = int64_t{64} << 10;

/// control[kNorm] = 2-norm of grad, summed in double, in an order that depends on n alone; control[kFirstNonFinite]. Padding must be zero.
///   grad (n) f32, n < 2^31      control (StepControl::kCount) f32
/// workspace  on CUDA kCheckGradientsWorkspaceBytes, else none      determinism  yes
/// throws  ShapeError, DtypeError, DeviceError, OutOfMemory (workspace)
void check_gradients(ExecContext& ctx, ConstView grad, View control);

/// kFactor = nominal / valid / loss scale, which turns the sum of scaled gradients into the mean over valid targets; kActive: there is a valid
/// target, training is not stopped and, unless non-finite steps are accepted, the gradient is finite (with NonFinite::stop, the sum of losses too);
/// kSkipped, kStopped: they are not. kNorm becomes that of the mean gradient. With NonFinite::accept (check_gradients was not called), kNorm becomes
/// NaN and kFirstNonFinite -1. NaN in place of the count of valid targets (a target was out of range) is no valid target.
///   totals (LossTotals::kCount) f32, reduced      state (LossScaleState::kCount) f32, or empty: the scale is 1
/// throws  ShapeError, DtypeError, DeviceError
void decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView totals, ConstView state, View control);

/// kFactor *= min(1, max_norm / (kNorm + 1e-6)): as torch.nn.utils.clip_grad_norm_. After check_gradients and decide_step.
/// throws  as above; ConfigError unless max_norm is above 0
void clip_gradients(ExecContext& ctx, double max_norm, View control);

/// A skipped step multiplies the scale by backoff_factor and sets the tracker to 0; a step taken counts, and the growth_interval-th in a row
/// multiplies it by growth_factor (unless that is infinite) and sets the tracker to 0; a step without valid targets changes nothing.
/// source  torch._amp_update_scale_; Micikevicius et al. 2018      throws  ShapeError, DtypeError, DeviceError
void update_loss_scale(ExecContext& ctx, const LossScaleConfig& config, ConstView control, View state);

}  // namespace vitrine
