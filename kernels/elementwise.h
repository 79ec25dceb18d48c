// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y = a + b, added in f32 and rounded once.
/// requires  equal shapes; all f32, all f16 or all bf16; y may be a or b, otherwise it overlaps neither
/// throws    ShapeError, DtypeError, DeviceError
void add(ExecContext& ctx, ConstView a, ConstView b, View y);

}  // namespace vitrine
