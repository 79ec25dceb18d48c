// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/implementations.h"

/// oneDNN's matrix products and convolutions. Primitives are made once for each shape and kept in ctx.plans(); packed weights and scratch
/// lie in ctx.workspace(). A function returns false, having done nothing, when oneDNN has no fast implementation of the shape or the
/// workspace is too small for it.
namespace vitrine::cpu::onednn {

bool gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode);

bool linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y);

bool conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y);
bool conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x);
bool conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode);

}  // namespace vitrine::cpu::onednn
