// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/accumulate.h"
#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// sums (columns) f32 = sums over the rows of x (..., columns) f32, f16 or bf16, or added to what is there: the gradient of a bias. Rows are summed
/// in a fixed number of strips, whose sums are added in order: one order on every GPU. Scratch that holds fewer strips' sums makes fewer strips. At
/// least one row.
void column_sum(ExecContext& ctx, ConstView x, View sums, GradMode mode, View scratch);

}  // namespace vitrine::cuda
