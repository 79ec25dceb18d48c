// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Totals over targets that travel with the reduction: f32 each, at these places of a StepStatistics view.
struct LossTotals {
  static constexpr int64_t kLossSum = 0;
  static constexpr int64_t kValid = 1;
  static constexpr int64_t kCorrect = 2;
  static constexpr int64_t kCount = 64;  // elements of the view; the rest is zero
};

struct CrossEntropyConfig {
  int32_t ignore_index = -100;  // a target with this value has no loss and no gradient
  float grad_scale = 1.0F;      // gradient of each target's loss: 1 / nominal number of targets of the step
};

inline constexpr int64_t kCrossEntropyWorkspaceBytes = int64_t{24} << 10;

/// Softmax and cross-entropy of each row, and its gradient, in one pass: computed in f32 against the row maximum, summed in double.
///   logits (N, C) f32, f16 or bf16   targets (N) i32: 0 <= t < C or ignore_index   grad_logits (N, C) as logits, or empty; may be logits
///   loss_scale (1) f32, or empty: multiplies grad_scale; read on the device
///   totals (LossTotals::kCount) f32: kLossSum += sum of losses, kValid += targets not ignored, kCorrect += rows whose first largest logit is the
///   target
/// grad_logits = grad_scale * loss_scale * (softmax(logits) - onehot(target)); 0 in ignored rows      determinism  yes
/// A target out of range makes totals[kValid] NaN, which optimizers take for no valid target: no replica steps before the error is seen.
/// workspace  on CUDA kCrossEntropyWorkspaceBytes, else none
/// throws  ShapeError, DtypeError, DeviceError, OutOfMemory (workspace); DataError naming row and value of a target out of range (from the stream)
void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets, ConstView loss_scale,
                           View grad_logits, View totals);

}  // namespace vitrine
