// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

inline constexpr int64_t kDifferenceWorkspaceBytes = int64_t{32} << 10;

/// norms = (||x - reference||, ||reference||), 2-norms summed in double: measures the rounding error of x.
///   x (n) f32, f16 or bf16      reference (n) f32      norms (2) f32
/// ensures   the same bits in every run
/// workspace kDifferenceWorkspaceBytes on CUDA, otherwise none
/// throws    ShapeError, DtypeError, DeviceError, OutOfMemory (workspace)
void difference_norms(ExecContext& ctx, ConstView x, ConstView reference, View norms);

}  // namespace vitrine
