// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// y (rows, columns) f32, f16 or bf16: adds bias (columns) of the same dtype to each row unless it is empty, then
/// applies ReLU if `relu`; for products whose epilogue cuBLASLt refuses. In 16 bits y is rounded once more than by an
/// epilogue.
void add_bias_relu(ExecContext& ctx, ConstView bias, bool relu, View y);

}  // namespace vitrine::cuda
