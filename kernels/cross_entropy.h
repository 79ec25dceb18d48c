// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Layout of the totals over targets, a view (kCount) f32 that is summed over devices together with the gradients.
///
/// The count at place c has kDigits digits, stored at c, c + kDigitStep, c + 2 * kDigitStep, ...; its value is the sum
/// of digit[i] * kDigitBase^i. All digits but the last are below kDigitBase, so the f32 sum of the totals of up to
/// 16,384 devices is exact, as is every count up to 2^53. A count below 2^24 may be stored as its first digit alone.
struct LossTotals {
  static constexpr int64_t kLossSum = 0;
  static constexpr int64_t kValid = 1;    // a count
  static constexpr int64_t kCorrect = 2;  // a count
  static constexpr int64_t kTop5 = 9;     // a count
  static constexpr int64_t kTopClasses = 5;
  static constexpr int64_t kDigits = 4;
  static constexpr int64_t kDigitStep = 2;
  static constexpr int64_t kDigitBase = 1024;
  static constexpr int64_t kCount = 64;  // elements of the view; the rest is zero

  /// The count at `place` (kValid, kCorrect or kTop5) of totals in host memory; NaN if softmax_cross_entropy stored
  /// NaN.
  static double count(const float* totals, int64_t place) {
    double value = 0.0, unit = 1.0;
    for (int64_t i = 0; i < kDigits; ++i, unit *= kDigitBase)
      value += unit * static_cast<double>(totals[place + i * kDigitStep]);
    return value;
  }
  /// Adds to the count at `place`; NaN stays NaN.
  static void add_to_count(float* totals, int64_t place, int64_t more) {
    double rest = count(totals, place) + static_cast<double>(more);
    if (rest != rest) return;
    for (int64_t i = 0; i < kDigits; ++i) {
      const auto whole = static_cast<int64_t>(rest), next = whole / kDigitBase;
      totals[place + i * kDigitStep] = static_cast<float>(i + 1 < kDigits ? whole % kDigitBase : whole);
      rest = static_cast<double>(next);
    }
  }
};

struct CrossEntropyConfig {
  int32_t ignore_index = -100;  // targets with this value contribute no loss and no gradient
  float grad_scale = 1.0F;      // factor of each target's gradient: 1 / nominal number of targets of the step
  /// In 0..1: the target distribution is (1 - label_smoothing) * onehot(target) + label_smoothing / C, as in
  /// torch.nn.CrossEntropyLoss.
  float label_smoothing = 0.0F;
};

inline constexpr int64_t kCrossEntropyWorkspaceBytes = int64_t{32} << 10;

/// Softmax, cross-entropy and its gradient for each row, in one pass: computed in f32 relative to the row maximum,
/// summed in double; of rows too long for registers, GPUs first add up to 16 terms in f32.
///   logits (N, C) f32, f16 or bf16   targets (N) i32: 0 <= t < C or ignore_index
///   grad_logits (N, C) as logits, or empty; may be logits
///   loss_scale (1) f32, or empty: multiplies grad_scale; read on the device
///   totals (LossTotals::kCount) f32: kLossSum += sum of losses, kValid += targets not ignored, kCorrect += rows whose
///     first largest logit is the target, kTop5 += rows with fewer than five logits that are larger than the target's,
///     or equal and before it
/// ensures   grad_logits = grad_scale * loss_scale * (softmax(logits) - target distribution); 0 in ignored rows; the
///           same bits in every run. A target out of range makes totals[kValid] NaN, which optimizers treat as no valid
///           target: no replica steps before the error is reported.
/// workspace kCrossEntropyWorkspaceBytes on CUDA, otherwise none
/// throws    ShapeError, DtypeError, DeviceError, OutOfMemory (workspace); ConfigError when label_smoothing is not in
///           0..1; from the stream DataError with row and value of a target out of range
void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets,
                           ConstView loss_scale, View grad_logits, View totals);

}  // namespace vitrine
