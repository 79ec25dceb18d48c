// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = max(x, 0); NaN stays NaN.
/// requires  x and y have the same shape, and dtype f32, f16 or bf16; y is x or does not overlap it
/// throws    ShapeError, DtypeError, DeviceError
void relu_forward(ExecContext& ctx, ConstView x, View y);

/// grad_x = grad_y where y, the output of the forward pass, is above 0; otherwise 0. With `sums`, also the sums of
/// grad_x over all dimensions but the last, in the same pass: the gradient of a bias that was added before the ReLU.
///   y, grad_y, grad_x (..., C)   sums (C) f32, overwritten or added to, or empty
/// requires  y, grad_y and grad_x have the same shape and dtype; grad_x is grad_y or overlaps neither
/// ensures   sums in f32, of the rounded elements; the same bits in every run
/// workspace with sums on CUDA, partial sums of strips of rows: more make it faster; none is needed
/// throws    ShapeError, DtypeError, DeviceError
void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x, View sums = {},
                   GradMode mode = GradMode::overwrite);

}  // namespace vitrine
