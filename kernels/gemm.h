// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/accumulate.h"
#include "runtime/exec_context.h"

namespace vitrine {

/// Matrix product of row-major matrices.
///   c (M, N) = op(a) op(b)  [+ c when accumulating];  op(a) is (M, K): a is (M, K), or (K, M) with transpose_a;  op(b) is (K, N) likewise
/// dtypes  f32      aliasing  c may not overlap a or b      determinism  yes
/// stream  asynchronous      workspace  none      throws  ShapeError, DtypeError, DeviceError      source  BLAS level 3
void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode = GradMode::overwrite);

}  // namespace vitrine
