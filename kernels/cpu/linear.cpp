// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/implementations.h"

namespace vitrine::cpu {

void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::linear_forward(ctx, x, w, bias, relu, y)) return;
#endif
  portable::linear_forward(ctx, x, w, bias, relu, y);
}

void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x) {
  cpu::gemm(ctx, false, false, grad_y, w, grad_x, GradMode::overwrite);
}

void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  cpu::gemm(ctx, true, false, grad_y, x, grad_w, mode);
  if (grad_bias) portable::column_sums(grad_y.as<float>(), grad_y.shape[0], grad_y.shape[1], grad_bias.as<float>(), mode);
}

}  // namespace vitrine::cpu
