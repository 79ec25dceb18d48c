// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = x / 2 * (1 + erf(x / sqrt(2))): torch.nn.GELU with approximate='none'.
/// requires  x and y have the same shape, and dtype f32, f16 or bf16; y is x or does not overlap it
/// throws    ShapeError, DtypeError, DeviceError      source  Hendrycks & Gimpel 2016
void gelu_forward(ExecContext& ctx, ConstView x, View y);

/// grad_x = grad_y * (P(x) + x * p(x)), where P and p are the distribution and the density of the standard normal, and
/// x the input of forward.
/// requires  x, grad_y and grad_x have the same shape and dtype; grad_x is grad_y or overlaps neither
/// throws    ShapeError, DtypeError, DeviceError
void gelu_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x);

}  // namespace vitrine
