// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/accumulate.h"
#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// sums (columns) f32 = sums over the rows of x (..., columns) f32, f16 or bf16, overwritten or added to: the gradient
/// of a bias. One launch. Rows are summed in a number of strips that depends on the shape and the workspace
/// (column_sums.cuh). requires  x has at least one row
void column_sum(ExecContext& ctx, ConstView x, View sums, GradMode mode);

}  // namespace vitrine::cuda
