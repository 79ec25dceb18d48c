// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kernels/conv2d.h"

/// Convolution by cuDNN's graph API. Each function queues the operation, or returns why cuDNN has no plan for it that is deterministic, keeps f32
/// (but for ctx.tf32()) and fits the arena; the verdict is kept in ctx.plans(). Failures of cuDNN itself throw CudaError.
namespace vitrine::cuda {

/// bias may be empty.
std::string cudnn_conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y);
std::string cudnn_conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x);
/// The weights' gradient alone.
std::string cudnn_conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, GradMode mode);
/// The same by way of a gradient that is rounded to x's dtype, f16 or bf16, at the arena's end: the plans that cuDNN has for these.
std::string cudnn_conv2d_backward_weight_rounded(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                                                 GradMode mode);

}  // namespace vitrine::cuda
