// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Sets found to tag if found is -1 and x has an infinity or NaN. Called for one output after the other, it keeps the
/// tag of the first that is not finite. For diagnosis.
///   x any shape, f32, f16 or bf16      tag >= 0      found (1) i32
/// throws    ShapeError, DtypeError, DeviceError
void find_non_finite(ExecContext& ctx, ConstView x, int32_t tag, View found);

}  // namespace vitrine
