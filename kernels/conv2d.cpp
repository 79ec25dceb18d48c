// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv2d.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/conv2d_choice.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "kernels/recorded_operations.h"
#include "kernels/run.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {

namespace f32 {

void conv2d_forward(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x, ConstView w,
                    ConstView bias, View y) {
  if (onednn::conv2d_forward(ctx, workspace, config, x, w, bias, y)) return;
  portable::conv2d_forward(ctx, workspace, config, x, w, bias, y);
}

void conv2d_backward_data(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView grad_y,
                          ConstView w, View grad_x) {
  if (onednn::conv2d_backward_data(ctx, workspace, config, grad_y, w, grad_x)) return;
  portable::conv2d_backward_data(ctx, workspace, config, grad_y, w, grad_x);
}

void conv2d_backward_weight(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x,
                            ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  if (onednn::conv2d_backward_weight(ctx, workspace, config, x, grad_y, grad_w, grad_bias, mode)) return;
  portable::conv2d_backward_weight(ctx, workspace, config, x, grad_y, grad_w, grad_bias, mode);
}

int64_t conv2d_bytes(ExecContext& ctx, Conv2dPass pass, const Conv2dConfig& config, const Shape& x, const Shape& w,
                     bool with_bias) {
  const int64_t bytes = onednn::conv2d_bytes(ctx, pass, config, x, w, with_bias, DType::f32);
  if (bytes >= 0) return bytes;
  return portable::conv2d_bytes(config, x, w).most;
}

}  // namespace f32

namespace {

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  if (x.dtype == DType::f32) {
    f32::conv2d_forward(ctx, ctx.workspace(), config, x, w, bias, y);
  } else if (!onednn::computes(x.dtype) || !onednn::conv2d_forward(ctx, ctx.workspace(), config, x, w, bias, y)) {
    widened::conv2d_forward(ctx, config, x, w, bias, y);
  }
}

void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  if (grad_y.dtype == DType::f32) {
    f32::conv2d_backward_data(ctx, ctx.workspace(), config, grad_y, w, grad_x);
  } else if (!onednn::computes(grad_y.dtype) ||
             !onednn::conv2d_backward_data(ctx, ctx.workspace(), config, grad_y, w, grad_x)) {
    widened::conv2d_backward_data(ctx, config, grad_y, w, grad_x);
  }
}

void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            View grad_bias, GradMode mode) {
  if (x.dtype == DType::f32) {
    f32::conv2d_backward_weight(ctx, ctx.workspace(), config, x, grad_y, grad_w, grad_bias, mode);
  } else if (!onednn::computes(x.dtype) ||
             !onednn::conv2d_backward_weight(ctx, ctx.workspace(), config, x, grad_y, grad_w, grad_bias, mode)) {
    widened::conv2d_backward_weight(ctx, config, x, grad_y, grad_w, grad_bias, mode);
  }
}

}  // namespace
}  // namespace cpu

namespace cuda {  // conv2d_cuda.cpp
void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y);
void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x);
void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            View grad_bias, GradMode mode);
}  // namespace cuda

namespace {

Shape output_shape(const char* name, const Conv2dConfig& config, const Shape& x, const Shape& w) {
  if (config.stride < 1 || config.pad < 0) {
    throw ShapeError(fmt::format("{}: stride is {} and pad is {}, expected stride >= 1 and pad >= 0", name,
                                 config.stride, config.pad));
  }
  if (x.rank() != 4) throw ShapeError(fmt::format("{}: x has shape {}, expected (N, H, W, C)", name, x.str()));
  if (w.rank() != 4 || w.numel() == 0)
    throw ShapeError(fmt::format("{}: w has shape {}, expected (K, R, S, C), none of them 0", name, w.str()));
  if (x[3] != w[3])
    throw ShapeError(
        fmt::format("{}: x has shape {} but w {} needs x of shape (N, H, W, {})", name, x.str(), w.str(), w[3]));
  const int64_t height = x[1] + 2 * config.pad;
  const int64_t width = x[2] + 2 * config.pad;
  if (height < w[1] || width < w[2]) {
    throw ShapeError(
        fmt::format("{}: x has shape {}, padded {} x {}, but w {} needs at least {} x {}; use a larger image or pad",
                    name, x.str(), height, width, w.str(), w[1], w[2]));
  }
  return {x[0], (height - w[1]) / config.stride + 1, (width - w[2]) / config.stride + 1, w[0]};
}

}  // namespace

Shape conv2d_output_shape(const Conv2dConfig& config, const Shape& x, const Shape& w) {
  return output_shape("conv2d_output_shape", config, x, w);
}

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  constexpr const char* kName = "conv2d_forward";
  const Shape y_shape = output_shape(kName, config, x.shape, w.shape);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "w", w, x.dtype, ctx);
  if (bias) check::tensor(kName, "bias", bias, {w.shape[0]}, x.dtype, ctx);
  check::tensor(kName, "y", y, y_shape, x.dtype, ctx);
  check::no_overlap(kName, {"y", y}, {{"x", x}, {"w", w}, {"bias", bias}});
  if (y.numel() == 0) return;
  record(ctx, {Conv2dPass::forward, config, x.dtype, x.shape, w.shape, y_shape, static_cast<bool>(bias)});
  run(ctx, {kName, {x, w, bias}, {y}}, cpu::conv2d_forward, VITRINE_IF_CUDA(cuda::conv2d_forward), config, x, w, bias,
      y);
}

void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  constexpr const char* kName = "conv2d_backward_data";
  const Shape y_shape = output_shape(kName, config, grad_x.shape, w.shape);
  check::tensor(kName, "grad_y", grad_y, ctx);
  check::shape(kName, "grad_y", grad_y, y_shape);
  check::tensor(kName, "w", w, grad_y.dtype, ctx);
  check::tensor(kName, "grad_x", grad_x, grad_y.dtype, ctx);
  check::no_overlap(kName, {"grad_x", grad_x}, {{"grad_y", grad_y}, {"w", w}});
  if (grad_x.numel() == 0) return;
  record(ctx, {Conv2dPass::backward_data, config, grad_x.dtype, grad_x.shape, w.shape, y_shape});
  run(ctx, {kName, {grad_y, w}, {grad_x}}, cpu::conv2d_backward_data, VITRINE_IF_CUDA(cuda::conv2d_backward_data),
      config, grad_y, w, grad_x);
}

void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            View grad_bias, GradMode mode) {
  constexpr const char* kName = "conv2d_backward_weight";
  const Shape y_shape = output_shape(kName, config, x.shape, grad_w.shape);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "grad_y", grad_y, y_shape, x.dtype, ctx);
  check::tensor(kName, "grad_w", grad_w, DType::f32, ctx);
  if (grad_bias) check::tensor(kName, "grad_bias", grad_bias, {grad_w.shape[0]}, DType::f32, ctx);
  check::no_overlap(kName, {"grad_w", grad_w}, {{"x", x}, {"grad_y", grad_y}, {"grad_bias", grad_bias}});
  check::no_overlap(kName, {"grad_bias", grad_bias}, {{"x", x}, {"grad_y", grad_y}});
  const bool accumulate = mode == GradMode::accumulate;
  if (x.shape[0] == 0) {
    if (accumulate) return;
    zero(ctx, grad_w);
    if (grad_bias) zero(ctx, grad_bias);
    return;
  }
  const ConstView old_w = accumulate ? ConstView(grad_w) : ConstView{};
  const ConstView old_bias = accumulate ? ConstView(grad_bias) : ConstView{};
  record(ctx, {Conv2dPass::backward_weight, config, x.dtype, x.shape, grad_w.shape, y_shape,
               static_cast<bool>(grad_bias), accumulate});
  run(ctx, {kName, {x, grad_y, old_w, old_bias}, {grad_w, grad_bias}}, cpu::conv2d_backward_weight,
      VITRINE_IF_CUDA(cuda::conv2d_backward_weight), config, x, grad_y, grad_w, grad_bias, mode);
}

}  // namespace vitrine
