// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv2d.h"

#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"

namespace vitrine::cpu {
namespace f32 {

void conv2d_forward([[maybe_unused]] ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias,
                    View y) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::conv2d_forward(ctx, workspace, config, x, w, bias, y)) return;
#endif
  portable::conv2d_forward(workspace, config, x, w, bias, y);
}

void conv2d_backward_data([[maybe_unused]] ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView grad_y, ConstView w,
                          View grad_x) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::conv2d_backward_data(ctx, workspace, config, grad_y, w, grad_x)) return;
#endif
  portable::conv2d_backward_data(workspace, config, grad_y, w, grad_x);
}

void conv2d_backward_weight([[maybe_unused]] ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x, ConstView grad_y,
                            View grad_w, View grad_bias, GradMode mode) {
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::conv2d_backward_weight(ctx, workspace, config, x, grad_y, grad_w, grad_bias, mode)) return;
#endif
  portable::conv2d_backward_weight(workspace, config, x, grad_y, grad_w, grad_bias, mode);
}

int64_t conv2d_bytes([[maybe_unused]] ExecContext& ctx, [[maybe_unused]] Conv2dPass pass, const Conv2dConfig& config, const Shape& x, const Shape& w,
                     [[maybe_unused]] bool with_bias) {
#ifdef VITRINE_HAVE_ONEDNN
  const int64_t bytes = onednn::conv2d_bytes(ctx, pass, config, x, w, with_bias, DType::f32);
  if (bytes >= 0) return bytes;
#endif
  return portable::conv2d_bytes(config, x, w).most;
}

}  // namespace f32

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  if (x.dtype == DType::f32) {
    f32::conv2d_forward(ctx, ctx.workspace(), config, x, w, bias, y);
    return;
  }
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::computes(x.dtype) && onednn::conv2d_forward(ctx, ctx.workspace(), config, x, w, bias, y)) return;
#endif
  widened::conv2d_forward(ctx, config, x, w, bias, y);
}

void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  if (grad_y.dtype == DType::f32) {
    f32::conv2d_backward_data(ctx, ctx.workspace(), config, grad_y, w, grad_x);
    return;
  }
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::computes(grad_y.dtype) && onednn::conv2d_backward_data(ctx, ctx.workspace(), config, grad_y, w, grad_x)) return;
#endif
  widened::conv2d_backward_data(ctx, config, grad_y, w, grad_x);
}

void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  if (x.dtype == DType::f32) {
    f32::conv2d_backward_weight(ctx, ctx.workspace(), config, x, grad_y, grad_w, grad_bias, mode);
    return;
  }
#ifdef VITRINE_HAVE_ONEDNN
  if (onednn::computes(x.dtype) && onednn::conv2d_backward_weight(ctx, ctx.workspace(), config, x, grad_y, grad_w, grad_bias, mode)) return;
#endif
  widened::conv2d_backward_weight(ctx, config, x, grad_y, grad_w, grad_bias, mode);
}

}  // namespace vitrine::cpu
