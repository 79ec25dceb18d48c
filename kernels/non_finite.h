// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// found = tag where found is -1 and x has an infinity or a NaN: called for one output after the other, it keeps the tag of the first that is not
/// finite. For diagnosis.
///   x any shape, f32, f16 or bf16      tag >= 0      found (1) i32
/// determinism  yes      throws  ShapeError, DtypeError, DeviceError
void find_non_finite(ExecContext& ctx, ConstView x, int32_t tag, View found);

}  // namespace vitrine
