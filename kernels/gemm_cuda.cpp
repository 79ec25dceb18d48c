// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublaslt.h"
#include "kernels/gemm.h"

namespace vitrine::cuda {

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  const Matmul product{.m = c.shape[0],
                       .n = c.shape[1],
                       .k = a.shape[transpose_a ? 0 : 1],
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b,
                       .dtype = a.dtype,
                       .c_dtype = c.dtype,
                       .accumulate = mode == GradMode::accumulate};
  matmul(ctx, product, a.data, b.data, c.data, nullptr, ctx.workspace());
}

}  // namespace vitrine::cuda
