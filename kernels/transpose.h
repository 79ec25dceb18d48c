// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y(n, c, r) = x(n, r, c).
///   x (N, R, C)   y (N, C, R)
/// dtypes  f32, f16 or bf16, both equal      aliasing  y must not overlap x      determinism  yes
/// throws  ShapeError, DtypeError, DeviceError
void transpose(ExecContext& ctx, ConstView x, View y);

}  // namespace vitrine
