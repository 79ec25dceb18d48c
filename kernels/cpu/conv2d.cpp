// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/implementations.h"

namespace vitrine::cpu {

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::conv2d_forward(ctx, config, x, w, bias, y)) return;
#endif
  portable::conv2d_forward(ctx, config, x, w, bias, y);
}

void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::conv2d_backward_data(ctx, config, grad_y, w, grad_x)) return;
#endif
  portable::conv2d_backward_data(ctx, config, grad_y, w, grad_x);
}

void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::conv2d_backward_weight(ctx, config, x, grad_y, grad_w, grad_bias, mode)) return;
#endif
  portable::conv2d_backward_weight(ctx, config, x, grad_y, grad_w, grad_bias, mode);
}

}  // namespace vitrine::cpu
