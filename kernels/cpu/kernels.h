// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/conv2d.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/image.h"
#include "kernels/linear.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "kernels/relu.h"

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

void relu_forward(ExecContext& ctx, ConstView x, View y);
void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x);
void add(ExecContext& ctx, ConstView a, ConstView b, View y);

void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices);
void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x);
void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y);
void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x);
void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y);
void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x);

void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y);
void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets, View grad_logits, View totals);

void sgd_update(ExecContext& ctx, const SgdConfig& config, float nominal, View param, ConstView grad, View momentum_buffer, View step,
                ConstView totals);
void adam_update(ExecContext& ctx, const AdamConfig& config, float nominal, View param, ConstView grad, View exp_avg, View exp_avg_sq, View step,
                 ConstView totals);

void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y);

}  // namespace vitrine::cpu
