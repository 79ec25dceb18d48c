// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

inline constexpr int64_t kDifferenceWorkspaceBytes = int64_t{32} << 10;

/// norms = (||x - reference||, ||reference||) in the 2-norm, summed in double: how far rounding took x.
///   x (n) f32, f16 or bf16      reference (n) f32      norms (2) f32
/// workspace  on CUDA kDifferenceWorkspaceBytes, else none      determinism  yes
/// throws  ShapeError, DtypeError, DeviceError, OutOfMemory (workspace)
void difference_norms(ExecContext& ctx, ConstView x, ConstView reference, View norms);

}  // namespace vitrine
