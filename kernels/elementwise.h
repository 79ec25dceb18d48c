// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = a + b, added in f32 and rounded once.
/// requires  equal shapes; all f32, all f16 or all bf16; y may be a or b, otherwise it overlaps neither
/// throws    ShapeError, DtypeError, DeviceError
void add(ExecContext& ctx, ConstView a, ConstView b, View y);

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

/// The distribution P of the standard normal in y = x * P(x), as torch.nn.GELU's `approximate` has it:
///   erf   "none": P(x) = (1 + erf(x / sqrt(2))) / 2
///   tanh  "tanh": P(x) = (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2
enum class GeluForm : uint8_t { erf, tanh };

/// y = x * P(x).
/// requires  x and y have the same shape, and dtype f32, f16 or bf16; y is x or does not overlap it
/// throws    ShapeError, DtypeError, DeviceError      source  Hendrycks & Gimpel 2016
void gelu_forward(ExecContext& ctx, ConstView x, View y, GeluForm form = GeluForm::erf);

/// grad_x = grad_y * (P(x) + x * P'(x)), where x is the input of forward.
/// requires  x, grad_y and grad_x have the same shape and dtype; grad_x is grad_y or overlaps neither
/// throws    ShapeError, DtypeError, DeviceError
void gelu_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x, GeluForm form = GeluForm::erf);

}  // namespace vitrine
