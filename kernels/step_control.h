// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include <vitrine/kernels/step_values.h>
#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/square_sums.h>

/// Operations between the reduction of the gradients and the update of the parameters. They decide on the device
/// whether the optimizer step is taken and by which factor the update multiplies the summed gradient, so that no step
/// waits for the host:
///
///     check_gradients (unless non-finite steps are accepted) -> decide_step -> clip_gradients -> an update
///     (kernels/optimizer.h)
///
/// check_and_decide_step is the first two in one operation, which also begins the update if it gets its UpdateCount.
///
/// None of them writes the gradient: the update applies the factor as it reads it.
namespace vitrine {

/// What happens when the loss or the gradient of a step is not finite.
enum class NonFinite : uint8_t {
  accept,  // the step is taken without a check, and the parameters become non-finite too, as in PyTorch
  skip,    // a non-finite gradient skips the step
  stop,    // a non-finite loss or gradient stops training: this step and all later ones change nothing. With a loss
           // scale, a non-finite gradient of a finite loss only skips the step. Updates keep the parameters finite.
};

/// Layout of the control vector, a view (kCount) f32 that these operations read and write. It persists between steps;
/// the caller zeroes it before the first one.
struct StepControl {
  static constexpr int64_t kFactor = 0;   // factor by which the update multiplies the summed gradient
  static constexpr int64_t kActive = 1;   // 1: the step is taken; 0: it changes nothing
  static constexpr int64_t kSkipped = 2;  // 1: the step is not taken because the loss or the gradient is not finite
  static constexpr int64_t kNorm = 3;  // 2-norm of the mean gradient before clipping; NaN if gradients are not checked
  static constexpr int64_t kLossScale = 4;  // loss scale of this step
  static constexpr int64_t kFirstNonFinite =
      5;  // bits of an i32: index of the first infinity or NaN in the gradient, modulo 2^30; -1: none
  static constexpr int64_t kStopped =
      6;  // 0, or why training has stopped: kByLoss, kByGradient, kByUpdate; only the caller resets it
  static constexpr int64_t kKeepsFinite =
      7;  // 1: the update keeps the old value of an element whose new one is not finite, and sets kStopped
  static constexpr int64_t kFirstNonFiniteHigh = 8;  // bits of an i32: that index divided by 2^30
  static constexpr int64_t kUpdate = 9;              // bits of an i32: number of the update that began last, from 1
  static constexpr int64_t kStepSize = 10;           // of that update by Adam: lr / (1 - beta1^number)
  static constexpr int64_t kCorrection = 11;         // of that update by Adam: 1 / sqrt(1 - beta2^number)
  static constexpr int64_t kArrived =
      15;  // 0 between operations: CUDA blocks of check_gradients that have finished their part
  static constexpr int64_t kCount = 16;  // the remaining elements are 0

  static constexpr float kByLoss = 1.0F, kByGradient = 2.0F, kByUpdate = 3.0F;
};
/// The count of updates, for a decision that also begins the update: it then needs no launch for that.
struct UpdateCount {
  View step;  // (1) i32: number of updates so far, incremented if the step is taken; empty: the update counts itself
  double lr = 0.0, beta1 = 0.0, beta2 = 0.0;  // of AdamConfig; no effect for SGD
  ConstView values = {};                      // empty, or (StepValues::kCount) i32: lr and beta1
};
/// The first elements of a gradient, whose squares have been summed before, by sum_squares() or
/// SquaringCommunicator::all_reduce_and_square().
struct SquaredElements {
  int64_t elements = 0;  // 0: none
  ConstView squares =
      {};  // (tiles, 2) i32 (runtime/square_sums.h), of one range after another; each range begins a new tile
  // They may include squares from other devices. Where only another device has the element that is not finite, the
  // step is decided as there, and kFirstNonFinite is the last of these elements.
};
/// Index of the first infinity or NaN in the gradient; -1 if all elements are finite.
inline int64_t first_non_finite(std::span<const float> control) {
  const auto low = std::bit_cast<int32_t>(control[StepControl::kFirstNonFinite]);
  return low < 0 ? -1 : (int64_t{std::bit_cast<int32_t>(control[StepControl::kFirstNonFiniteHigh])} << 30) + low;
}

/// The loss scaler's state, a view (kCount) f32.
struct LossScaleState {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kGrowthTracker = 1;  // number of steps without an overflow since the scale changed
  static constexpr int64_t kCount = 2;
};

/// Constants of dynamic loss scaling; the defaults are torch.cuda.amp.GradScaler's.
struct LossScaleConfig {
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int32_t growth_interval = 2000;
};
/// The loss scale of a step.
struct LossScale {
  View state = {};  // (LossScaleState::kCount) f32, or empty: the scale is 1
  /// Adapts the state once the step is decided. A skipped step multiplies the scale by backoff_factor and sets the
  /// tracker to 0. A step that is taken increments the tracker; when it reaches growth_interval, the scale is
  /// multiplied by growth_factor, unless it would become infinite, and the tracker is set to 0. A step without valid
  /// targets changes nothing.      source  torch._amp_update_scale_; Micikevicius et al. 2018
  std::optional<LossScaleConfig> dynamic = {};
};

inline constexpr int64_t kCheckGradientsWorkspaceBytes = int64_t{64} << 10;

/// Writes control[kNorm] = 2-norm of grad, and control[kFirstNonFinite]. Squares are summed in double, in an order that
/// depends only on n.
///   grad (n) f32; padding between parameters must be 0      control (StepControl::kCount) f32, all zeros before its
///     first use
/// workspace  on CUDA kCheckGradientsWorkspaceBytes, else none      determinism  yes
/// throws  ShapeError, DtypeError, DeviceError, OutOfMemory (workspace)
void check_gradients(ExecContext& ctx, ConstView grad, View control);

/// Sums the squares of grad by tiles, in double; in which order depends only on n.
///   grad (n) f32, n above 0      squares (square_tiles(n), 2) i32
/// workspace  none      determinism  yes      throws  ShapeError, DtypeError, DeviceError
void sum_squares(ExecContext& ctx, ConstView grad, View squares);

/// Decides whether the step is taken, and writes
///   kFactor   nominal / valid targets / loss scale, which turns the sum of scaled gradients into the mean over valid
///             targets
///   kActive   1 if there is a valid target, training has not stopped, and the gradient is finite (with
///             NonFinite::stop, the sum of losses too; with NonFinite::accept neither is checked)
///   kSkipped  1 if the checked loss or gradient is not finite; with NonFinite::stop, kStopped says which
///   kLossScale the loss scale of this step, before it adapts
///   kNorm     the norm of the mean gradient. With NonFinite::accept, where check_gradients is not called, kNorm is NaN
///             and kFirstNonFinite -1.
/// A NaN instead of the number of valid targets, which means that a target was out of range, counts as no valid target.
/// If the step is taken and `count` has a step, it is incremented, and kUpdate, kStepSize and kCorrection are written:
/// the update that follows gets an empty step.
///   totals (LossTotals::kCount) f32, reduced
/// throws  ShapeError, DtypeError, DeviceError
void decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView totals, const LossScale& scale,
                 View control, const UpdateCount& count = {});

/// check_gradients() and then decide_step(), with the same results: one launch on CUDA. Elements that have been squared
/// are read again only to find the first one that is not finite, if there is one; the norm may then differ in its last
/// bit.   workspace, throws  as both
void check_and_decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView grad, ConstView totals,
                           const LossScale& scale, View control, const UpdateCount& count = {},
                           const SquaredElements& squared = {});

/// kFactor *= min(1, max_norm / (kNorm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does. Call it after check_gradients
/// and decide_step.
/// throws  as above; ConfigError unless max_norm is above 0
void clip_gradients(ExecContext& ctx, double max_norm, View control);

}  // namespace vitrine
