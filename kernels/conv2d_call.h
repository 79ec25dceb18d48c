// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/recorded_operations.h"

namespace vitrine {

/// One pass of a convolution with its tensors, or their gradients, for the implementations. The pass writes y
/// (forward), x (backward_data), or w and bias (backward_weight), and only reads the others.
struct Conv2dCall {
  Conv2dPass pass = Conv2dPass::forward;
  Conv2dConfig config;
  View x, w, bias, y;
  GradMode mode = GradMode::overwrite;  // of backward_weight

  RecordedConv2d recorded() const {
    return {pass, config, y.dtype, x.shape, w.shape, y.shape, static_cast<bool>(bias), mode == GradMode::accumulate};
  }
};

/// Remembers the first choice for an operation, for conv2d_choices().
void note_choice(ExecContext& ctx, RecordedConv2d operation, const std::string& implementation, const Reason& reason);

/// A tensor that a Conv2dCall only reads.
inline View read_only(const ConstView& v) { return {const_cast<void*>(v.data), v.shape, v.dtype, v.device}; }

}  // namespace vitrine
