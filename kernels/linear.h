// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = x w^T + bias, then ReLU if `relu` (a NaN becomes NaN or 0, depending on the library).
///   x (N, I)   w (O, I)   bias (O) or empty   y (N, O)
/// requires  x, w, bias and y are all f32, all f16 or all bf16; y does not overlap x, w or bias
/// ensures   sums in f32, rounded once; the same bits in every run
/// workspace like gemm
/// throws    ShapeError, DtypeError, DeviceError; from the stream OutOfMemory (workspace)
void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y);

/// grad_x (N, I) = grad_y (N, O) w (O, I). Otherwise like linear_forward.
void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x);

/// grad_w (O, I) = grad_y^T x and grad_bias (O, or empty) = column sums of grad_y, both f32, overwritten or added to.
/// Otherwise like linear_forward.
void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                            GradMode mode);

}  // namespace vitrine
