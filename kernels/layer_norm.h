// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = (x - mean) / sqrt(variance + eps) * weight + bias, where mean and biased variance are those of each row:
/// torch.nn.LayerNorm over the last dimension.
///   x, y (..., C)   weight, bias (C) f32   statistics (rows, 2) f32: mean and 1 / sqrt(variance + eps) of each row; or
///     empty
/// dtypes  x and y both f32, f16 or bf16; computes in f32      aliasing  y is x or overlaps nothing
/// determinism  yes
/// throws  ShapeError, DtypeError, DeviceError      source  Ba et al. 2016
void layer_norm_forward(ExecContext& ctx, float eps, ConstView x, ConstView weight, ConstView bias, View y,
                        View statistics);

/// The gradient by x, the input of forward, from its statistics. grad_x is grad_y or overlaps nothing. Otherwise like
/// layer_norm_forward.
void layer_norm_backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                              View grad_x);

/// The gradients by weight and bias, (C) f32, overwritten or added to.
void layer_norm_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View grad_weight,
                                View grad_bias, GradMode mode);

}  // namespace vitrine
