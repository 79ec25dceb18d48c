// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/conv2d.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"

/// The CPU implementations behind the dispatchers in kernels/: same signatures, arguments already validated, called on the stream's worker.
/// They read workspace(), plans() and thread_count() of the context and never allocate.
namespace vitrine::cpu {

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode);

void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y);
void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x);
void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode);

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y);
void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x);
void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode);

}  // namespace vitrine::cpu
