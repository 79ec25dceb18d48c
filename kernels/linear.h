// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = x w^T + bias, then ReLU if asked for (where y would be NaN, merged ReLU gives NaN or 0, by library).
///   x (N, I)   w (O, I)   bias (O) or empty   y (N, O)
/// dtypes  x, w, bias and y all f32, f16 or bf16; accumulates in f32, rounds once      aliasing  y may not overlap x or w      determinism  yes
/// stream  asynchronous      workspace  as gemm, also in the passes below
/// throws  ShapeError, DtypeError, DeviceError, OutOfMemory (workspace, from the stream)
void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y);

/// grad_x (N, I) = grad_y (N, O) w (O, I).   aliasing  none      determinism  yes
void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x);

/// f32 grad_w (O, I) = grad_y^T x and f32 grad_bias (O) = column sums of grad_y, or added to them; grad_bias may be empty.   determinism  yes
void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode);

}  // namespace vitrine
