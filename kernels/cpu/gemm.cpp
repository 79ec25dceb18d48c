// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"

namespace vitrine::cpu {

void f32::gemm([[maybe_unused]] ExecContext& ctx, [[maybe_unused]] const View& workspace, bool transpose_a, bool transpose_b, ConstView a,
               ConstView b, View c, int64_t c_stride, GradMode mode) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::gemm(ctx, workspace, transpose_a, transpose_b, a, b, c, c_stride, mode)) return;
#endif
  portable::gemm(transpose_a, transpose_b, a, b, c, c_stride, mode);
}

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  if (a.dtype == DType::f32) {
    f32::gemm(ctx, ctx.workspace(), transpose_a, transpose_b, a, b, c, c.shape[1], mode);
    return;
  }
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::computes(a.dtype) && onednn::gemm(ctx, ctx.workspace(), transpose_a, transpose_b, a, b, c, c.shape[1], mode)) return;
#endif
  widened::gemm(ctx, transpose_a, transpose_b, a, b, c, mode);
}

}  // namespace vitrine::cpu
