// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

inline constexpr int64_t kWidenedGemmWorkspaceBytes = int64_t{64} << 10;

/// Matrix product of row-major matrices.
///   c (M, N) = op(a) op(b)  [+ c when accumulating];  op(a) is (M, K): a is (M, K), or (K, M) with transpose_a;  op(b) is (K, N) likewise
/// dtypes  a and b both f32, f16 or bf16; c as they, or f32, which is the only one that is accumulated into; accumulates in f32
/// aliasing  c may not overlap a or b      determinism  yes      stream  asynchronous
/// workspace  f16 and bf16 on the CPU: tiles widened to f32, at least kWidenedGemmWorkspaceBytes; else none
/// throws  ShapeError, DtypeError, DeviceError      source  BLAS level 3
void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode = GradMode::overwrite);

}  // namespace vitrine
