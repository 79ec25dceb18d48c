// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = a + b, added in f32 and rounded once.
/// requires  equal shapes; all f32, all f16 or all bf16; y may be a or b, otherwise it overlaps neither
/// throws    ShapeError, DtypeError, DeviceError
void add(ExecContext& ctx, ConstView a, ConstView b, View y);

/// y = x converted between f32, f16 and bf16.
/// requires  equal shapes; y does not overlap x
/// ensures   rounds to nearest, ties to even; overflows to infinity; keeps denormals, infinities and NaN
/// throws    ShapeError, DtypeError, DeviceError
void cast(ExecContext& ctx, ConstView x, View y);

}  // namespace vitrine
