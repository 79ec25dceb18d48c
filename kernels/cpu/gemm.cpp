// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/implementations.h"

namespace vitrine::cpu {

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::gemm(ctx, transpose_a, transpose_b, a, b, c, mode)) return;
#endif
  portable::gemm(ctx, transpose_a, transpose_b, a, b, c, mode);
}

}  // namespace vitrine::cpu
