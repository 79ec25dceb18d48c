// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// y (rows, columns) f32, f16 or bf16: adds bias (columns) of the same dtype to each row unless it is empty, then
/// applies ReLU if `relu`. NaN stays NaN, which cuBLASLt's ReLU turns into 0. A bias that is added here, because
/// cuBLASLt refuses its epilogue, rounds y in 16 bits once more.
void add_bias_relu(ExecContext& ctx, ConstView bias, bool relu, View y);

}  // namespace vitrine::cuda
