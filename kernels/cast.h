// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = x converted between f32, f16 and bf16.
/// requires  equal shapes; y does not overlap x
/// ensures   rounds to nearest, ties to even; overflows to infinity; keeps denormals, infinities and NaN
/// throws    ShapeError, DtypeError, DeviceError
void cast(ExecContext& ctx, ConstView x, View y);

}  // namespace vitrine
