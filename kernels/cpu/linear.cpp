// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"

namespace vitrine::cpu {

void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::computes(x.dtype) && onednn::linear_forward(ctx, ctx.workspace(), x, w, bias, relu, y)) return;
#endif
  if (x.dtype == DType::f32) {
    portable::linear_forward(x, w, bias, relu, y);
  } else {
    widened::linear_forward(ctx, x, w, bias, relu, y);
  }
}

void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x) {
  cpu::gemm(ctx, false, false, grad_y, w, grad_x, GradMode::overwrite);
}

void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  cpu::gemm(ctx, true, false, grad_y, x, grad_w, mode);
  if (grad_bias) portable::column_sums(grad_y, grad_bias.as<float>(), mode);
}

}  // namespace vitrine::cpu
