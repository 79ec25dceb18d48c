// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv2d.h"

#include <set>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/conv2d_call.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {

void f32::conv2d(ExecContext& ctx, const View& workspace, const Conv2dCall& call) {
  if (!onednn::conv2d(ctx, workspace, call)) portable::conv2d(ctx, workspace, call);
}

int64_t f32::conv2d_bytes(ExecContext& ctx, const RecordedConv2d& convolution) {
  const int64_t bytes = onednn::conv2d_bytes(ctx, convolution);
  return bytes >= 0 ? bytes : portable::conv2d_bytes(convolution).most;
}

namespace {

void conv2d(ExecContext& ctx, const Conv2dCall& call) {
  if (ctx.winograd()) {
    const Reason refusal = onednn::winograd_conv2d(ctx, call);
    note_choice(ctx, call.recorded(), refusal.empty() ? "Winograd" : "direct convolution", refusal);
    if (refusal.empty()) return;
  }
  if (call.y.dtype == DType::f32) return f32::conv2d(ctx, ctx.workspace(), call);
  if (!onednn::computes(call.y.dtype) || !onednn::conv2d(ctx, ctx.workspace(), call)) widened::conv2d(ctx, call);
}

}  // namespace
}  // namespace cpu

namespace cuda {  // conv2d_cuda.cpp
void conv2d(ExecContext& ctx, const Conv2dCall& call);
}  // namespace cuda

namespace {

struct Choices {
  std::set<RecordedConv2d::Key> known;
  std::vector<Conv2dChoice> list;
};

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

void note_choice(ExecContext& ctx, RecordedConv2d operation, const std::string& implementation, const Reason& reason) {
  auto& choices = ctx.plans().get<Choices>();
  operation.config.relu = operation.bias = operation.accumulate = false;
  if (choices.known.insert(operation.key()).second) choices.list.push_back({operation.str(), implementation, reason});
}

std::vector<Conv2dChoice> conv2d_choices(ExecContext& ctx) { return ctx.plans().get<Choices>().list; }

Reason winograd_refusal() { return cpu::onednn::winograd_refusal(); }

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
  const Conv2dCall call{Conv2dPass::forward, config, read_only(x), read_only(w), read_only(bias), y};
  record(ctx, call.recorded());
  run(ctx, {kName, {x, w, bias}, {y}}, cpu::conv2d, VITRINE_IF_CUDA(cuda::conv2d), call);
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
  const Conv2dCall call{Conv2dPass::backward_data, config, grad_x, read_only(w), {}, read_only(grad_y)};
  record(ctx, call.recorded());
  run(ctx, {kName, {grad_y, w}, {grad_x}}, cpu::conv2d, VITRINE_IF_CUDA(cuda::conv2d), call);
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
  if (x.shape[0] == 0) return add_nothing(ctx, mode, {grad_w, grad_bias});
  const Conv2dCall call{Conv2dPass::backward_weight, config, read_only(x), grad_w, grad_bias, read_only(grad_y), mode};
  record(ctx, call.recorded());
  run(ctx, {kName, {x, grad_y, content_of(grad_w, mode), content_of(grad_bias, mode)}, {grad_w, grad_bias}},
      cpu::conv2d, VITRINE_IF_CUDA(cuda::conv2d), call);
}

}  // namespace vitrine
