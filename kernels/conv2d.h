// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

struct Conv2dConfig {
  int64_t stride = 1;
  int64_t pad = 0;
  bool relu = false;  // merged into the forward pass: y = max(y, 0); a NaN becomes NaN or 0, depending on the library
};

/// Shape of y for x (N, H, W, C) and w (K, R, S, C).   throws  ShapeError when they do not match or the window exceeds
/// the padded image
Shape conv2d_output_shape(const Conv2dConfig& config, const Shape& x, const Shape& w);

/// 2-D cross-correlation plus optional bias and ReLU.
///   x (N, H, W, C)   w (K, R, S, C)   bias (K) or empty   y (N, P, Q, K);  P = floor((H + 2*pad - R) / stride) + 1, Q
///     likewise
/// requires  x, w, bias and y are all f32, all f16 or all bf16; y does not overlap x, w or bias
/// ensures   sums in f32, rounded once; the same bits in every run. By Winograd's algorithm (ExecContext::winograd()),
///           rounding errors are about six times as large, and a NaN or infinity spreads over tiles of 4 x 4 outputs
/// stream    asynchronous, never synchronizes
/// workspace ctx.workspace(), reserved by the caller: packed weights, scratch, and on the CPU f16 and bf16 images
///           widened to f32
/// throws    ShapeError, DtypeError, DeviceError; from the stream OutOfMemory with the bytes needed when no algorithm
///           fits the workspace
/// source    Chellapilla et al. 2006 (im2col); oneDNN's direct convolution if built in; Lavin & Gray 2015 (Winograd)
void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y);

/// grad_x (N, H, W, C) from grad_y (N, P, Q, K), the gradient before ReLU (see relu_backward). Otherwise like
/// conv2d_forward.
void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x);

/// grad_w (K, R, S, C) and grad_bias (K, or empty), both f32, overwritten or added to. Otherwise like conv2d_forward.
/// If cuDNN has no plan with an f32 gradient for f16 or bf16 images, the gradient is first rounded to their dtype (see
/// conv2d_choices()).
void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            View grad_bias, GradMode mode);

/// The implementation that a context chose for a convolution, and why it is not the preferred one.
struct Conv2dChoice {
  std::string
      operation;  // "conv2d_forward x (64, 227, 227, 3) w (64, 11, 11, 3) stride 4 pad 2, f16"; f32 is not named
  std::string implementation;  // "cuDNN", "cuDNN without tensor cores", "cuDNN, gradient rounded to f16" or
                               // "im2col + cuBLASLt"; of a CPU device "Winograd" or "direct convolution"
  Reason reason;               // why it is not cuDNN's f32 gradient or plan, or not Winograd; empty when it is
};

/// The choices for all convolutions that a GPU's context, or a CPU's that allows Winograd's algorithm, has run, in the
/// order of their first run. Empty on others.
/// requires  of a CPU device: the stream is idle
std::vector<Conv2dChoice> conv2d_choices(ExecContext& ctx);

/// Why no convolution on a CPU device of this machine can run by Winograd's algorithm; empty: those can that
/// conv2d_choices() lists.
Reason winograd_refusal();

}  // namespace vitrine
