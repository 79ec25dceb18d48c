// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv2d.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/conv2d_choice.h"
#include "kernels/implementations.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

Shape output_shape(const char* name, const Conv2dConfig& config, const Shape& x, const Shape& w) {
  if (config.stride < 1 || config.pad < 0) {
    throw ShapeError(fmt::format("{}: stride is {} and pad is {}, expected stride >= 1 and pad >= 0", name, config.stride, config.pad));
  }
  if (x.rank() != 4) throw ShapeError(fmt::format("{}: x has shape {}, expected (N, H, W, C)", name, x.str()));
  if (w.rank() != 4 || w.numel() == 0) throw ShapeError(fmt::format("{}: w has shape {}, expected (K, R, S, C), none of them 0", name, w.str()));
  if (x[3] != w[3]) throw ShapeError(fmt::format("{}: x has shape {} but w {} needs x of shape (N, H, W, {})", name, x.str(), w.str(), w[3]));
  const int64_t height = x[1] + 2 * config.pad;
  const int64_t width = x[2] + 2 * config.pad;
  if (height < w[1] || width < w[2]) {
    throw ShapeError(fmt::format("{}: x has shape {}, padded {} x {}, but w {} needs at least {} x {}; use a larger image or pad", name, x.str(),
                                 height, width, w.str(), w[1], w[2]));
  }
  return {x[0], (height - w[1]) / config.stride + 1, (width - w[2]) / config.stride + 1, w[0]};
}

}  // namespace

Shape conv2d_output_shape(const Conv2dConfig& config, const Shape& x, const Shape& w) { return output_shape("conv2d_output_shape", config, x, w); }

#ifdef VITRINE_HAVE_CUDA
namespace cuda {
std::vector<Conv2dChoice> conv2d_choices(ExecContext& ctx);  // in cuda/conv2d.cpp
}
#endif

std::vector<Conv2dChoice> conv2d_choices([[maybe_unused]] ExecContext& ctx) {
#ifdef VITRINE_HAVE_CUDA
  if (ctx.backend() == Backend::cuda) return cuda::conv2d_choices(ctx);
#endif
  return {};
}

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  constexpr const char* kName = "conv2d_forward";
  const Shape y_shape = output_shape(kName, config, x.shape, w.shape);
  check::storage(kName, "x", x);
  check::tensor(kName, "x", x, x.shape, x.dtype, ctx);
  check::tensor(kName, "w", w, w.shape, x.dtype, ctx);
  if (bias) check::tensor(kName, "bias", bias, {w.shape[0]}, x.dtype, ctx);
  check::tensor(kName, "y", y, y_shape, x.dtype, ctx);
  check::no_overlap(kName, "y", y, "x", x);
  check::no_overlap(kName, "y", y, "w", w);
  check::no_overlap(kName, "y", y, "bias", bias);
  if (y.numel() == 0) return;
  run(ctx, {kName, {x, w, bias}, {y}}, VITRINE_IMPLEMENTATIONS(conv2d_forward), config, x, w, bias, y);
}

void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  constexpr const char* kName = "conv2d_backward_data";
  const Shape y_shape = output_shape(kName, config, grad_x.shape, w.shape);
  check::storage(kName, "grad_y", grad_y);
  check::tensor(kName, "grad_y", grad_y, y_shape, grad_y.dtype, ctx);
  check::tensor(kName, "w", w, w.shape, grad_y.dtype, ctx);
  check::tensor(kName, "grad_x", grad_x, grad_x.shape, grad_y.dtype, ctx);
  check::no_overlap(kName, "grad_x", grad_x, "grad_y", grad_y);
  check::no_overlap(kName, "grad_x", grad_x, "w", w);
  if (grad_x.numel() == 0) return;
  run(ctx, {kName, {grad_y, w}, {grad_x}}, VITRINE_IMPLEMENTATIONS(conv2d_backward_data), config, grad_y, w, grad_x);
}

void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  constexpr const char* kName = "conv2d_backward_weight";
  const Shape y_shape = output_shape(kName, config, x.shape, grad_w.shape);
  check::storage(kName, "x", x);
  check::tensor(kName, "x", x, x.shape, x.dtype, ctx);
  check::tensor(kName, "grad_y", grad_y, y_shape, x.dtype, ctx);
  check::tensor(kName, "grad_w", grad_w, grad_w.shape, DType::f32, ctx);
  if (grad_bias) check::tensor(kName, "grad_bias", grad_bias, {grad_w.shape[0]}, DType::f32, ctx);
  check::no_overlap(kName, "grad_w", grad_w, "x", x);
  check::no_overlap(kName, "grad_w", grad_w, "grad_y", grad_y);
  check::no_overlap(kName, "grad_bias", grad_bias, "x", x);
  check::no_overlap(kName, "grad_bias", grad_bias, "grad_y", grad_y);
  check::no_overlap(kName, "grad_w", grad_w, "grad_bias", grad_bias);
  const bool accumulate = mode == GradMode::accumulate;
  if (x.shape[0] == 0) {
    if (accumulate) return;
    zero(ctx, grad_w);
    if (grad_bias) zero(ctx, grad_bias);
    return;
  }
  const ConstView old_w = accumulate ? ConstView(grad_w) : ConstView{};
  const ConstView old_bias = accumulate ? ConstView(grad_bias) : ConstView{};
  run(ctx, {kName, {x, grad_y, old_w, old_bias}, {grad_w, grad_bias}}, VITRINE_IMPLEMENTATIONS(conv2d_backward_weight), config, x, grad_y, grad_w,
      grad_bias, mode);
}

}  // namespace vitrine
