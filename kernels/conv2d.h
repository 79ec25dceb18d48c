// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

struct Conv2dConfig {
  int64_t stride = 1;
  int64_t pad = 0;
  bool relu = false;  // y = max(y, 0), merged into the forward pass; where y would be NaN it is NaN or 0, by library
};

/// Shape of y for x (N, H, W, C) and w (K, R, S, C). throws ShapeError when they do not fit or the window exceeds the padded image.
Shape conv2d_output_shape(const Conv2dConfig& config, const Shape& x, const Shape& w);

/// 2-D cross-correlation plus optional bias and ReLU.
///   x (N, H, W, C)   w (K, R, S, C)   bias (K) or empty   y (N, P, Q, K);  P = floor((H + 2*pad - R) / stride) + 1, Q likewise
/// dtypes  x, w, bias and y all f32, f16 or bf16; accumulates in f32, rounds once      aliasing  y may not overlap x      determinism  yes
/// stream  asynchronous, never synchronises
/// workspace  from ctx.workspace(), which must be reserved: packed weights, scratch, and on the CPU images of 16 bits widened to f32
/// throws  ShapeError, DtypeError, DeviceError; OutOfMemory naming the bytes needed when no algorithm fits the workspace (from the stream)
/// source  Chellapilla et al. 2006 (im2col); oneDNN's direct convolution where it is built in
void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y);

/// grad_x (N, H, W, C) from grad_y (N, P, Q, K), the gradient before ReLU (see relu_backward).   aliasing  none      determinism  yes
void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x);

/// f32 grad_w (K, R, S, C) and f32 grad_bias (K, or empty), overwritten or added to. Where cuDNN has no plan that gives an f32 gradient of f16 or
/// bf16 images, it gives one that is rounded to their dtype once (see conv2d_choice.h).   determinism  yes
void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode);

}  // namespace vitrine
