// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = max(x, 0), NaN stays NaN. Any shape, equal ones; all f32, f16 or bf16. y may be x.
void relu_forward(ExecContext& ctx, ConstView x, View y);

/// grad_x = grad_y where y > 0, else 0. y is the output of the forward pass. All f32, f16 or bf16. grad_x may be grad_y.
void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x);

}  // namespace vitrine
