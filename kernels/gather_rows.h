// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// y[i] = x[rows[i]], as torch.index_select along the first dimension: copies whole rows, such as the images of a batch
/// out of a data set.
///   x (M, ...)   rows (N) i32: 0 <= row < M, in any order, also repeated   y (N, ...), rows shaped as in x
/// dtypes    x and y of the same, any      aliasing  y overlaps neither x nor rows      determinism  yes
/// ensures   a row out of range gives zeros before the error is reported
/// throws    ShapeError, DtypeError, DeviceError; from the stream DataError with place and value of a row that is out
///           of range
void gather_rows(ExecContext& ctx, ConstView x, ConstView rows, View y);

}  // namespace vitrine
