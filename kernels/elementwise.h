// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = a + b. Equal shapes; all f32, f16 or bf16, added in f32. y may be a or b.
void add(ExecContext& ctx, ConstView a, ConstView b, View y);

/// y = x in another dtype, both of f32, f16, bf16; equal shapes. Rounded to the nearest, ties to even; beyond the largest number to infinity;
/// denormals as IEEE 754 says; infinities stay, NaN stays NaN. aliasing  none      determinism  yes      throws  ShapeError, DtypeError, DeviceError
void cast(ExecContext& ctx, ConstView x, View y);

}  // namespace vitrine
