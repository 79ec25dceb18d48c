// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/accumulate.h"
#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// y = x, or y += x.   requires  x is f16 or bf16, y is f32; both have the same number of elements, at least one
void widen(ExecContext& ctx, ConstView x, View y, GradMode mode);

}  // namespace vitrine::cuda
