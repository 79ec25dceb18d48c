// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

inline constexpr int64_t kWidenedGemmWorkspaceBytes = int64_t{64} << 10;

/// Matrix product of row-major matrices.
///   c (M, N) = op(a) op(b)  [+ c when accumulating];  op(a) is (M, K): a is (M, K), or (K, M) with transpose_a;  op(b)
///     is (K, N) likewise
/// requires  a and b are both f32, both f16 or both bf16; c has their dtype, or f32, which accumulation needs; c
///           overlaps neither a nor b
/// ensures   sums in f32, rounded once; the same bits in every run
/// workspace for f16 and bf16 on the CPU: tiles widened to f32, at least kWidenedGemmWorkspaceBytes; otherwise none
/// throws    ShapeError, DtypeError, DeviceError      source  BLAS level 3
void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c,
          GradMode mode = GradMode::overwrite);

}  // namespace vitrine
