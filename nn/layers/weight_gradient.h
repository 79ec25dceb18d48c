// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/copy.h"
#include "runtime/exec_context.h"

namespace vitrine {

/// Where a layer writes the gradient of its weight. If the weight is frozen but its bias is trained, that is scratch
/// memory, because both gradients come from one pass.
class WeightGradient {
 public:
  WeightGradient(ExecContext& ctx, const View& weight, const View& grad_weight, const View& grad_bias, GradMode mode)
      : view_(grad_weight) {
    if (grad_weight || !grad_bias) return;
    scratch_ = ctx.allocate(weight.shape, DType::f32, Category::activations, "gradient of a frozen weight");
    if (mode == GradMode::accumulate) zero(ctx, scratch_);
    view_ = scratch_;
  }
  /// False: neither gradient is needed.
  explicit operator bool() const { return static_cast<bool>(view_); }
  const View& view() const { return view_; }

 private:
  Tensor scratch_;
  View view_;
};

}  // namespace vitrine
