// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/accumulate.h"
#include "runtime/exec_context.h"

/// What products and convolutions of libraries leave to kernels of our own.
namespace vitrine::cuda {

/// y (rows, columns) f32, f16 or bf16: adds bias (columns) of the same dtype to each row unless it is empty, then
/// applies ReLU if `relu`. NaN stays NaN, which cuBLASLt's ReLU turns into 0. A bias that is added here, because
/// cuBLASLt refuses its epilogue, rounds y in 16 bits once more.
void add_bias_relu(ExecContext& ctx, ConstView bias, bool relu, View y);

/// sums (columns) f32 = sums over the rows of x (..., columns) f32, f16 or bf16, overwritten or added to: the gradient
/// of a bias. One launch. Rows are summed in a number of strips that depends on the shape and the workspace
/// (column_sums.cuh). requires  x has at least one row
void column_sum(ExecContext& ctx, ConstView x, View sums, GradMode mode);

}  // namespace vitrine::cuda
