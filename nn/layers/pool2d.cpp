// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/pool2d.h"

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

std::string describe_pool(const char* name, const Pool2dConfig& config) {
  return fmt::format("{0}({1}x{1}, stride {2}, pad {3})", name, config.window, config.stride, config.pad);
}

}  // namespace

std::string MaxPool2d::describe() const { return describe_pool("max_pool2d", config_) + (relu_ ? " + relu" : ""); }

Saved MaxPool2d::forward(const ForwardCall& call) const {
  const auto& [ctx, params, x, y, pass, buffers] = call;
  Saved saved;
  if (pass.training)
    saved.tensors.push_back(ctx.allocate(y.shape(), DType::u8, Category::activations, "max_pool2d.indices"));
  max_pool2d_forward(ctx, config_, x, y, pass.training ? saved.tensors[0].view() : View{}, relu_ && !relu_apart());
  if (!relu_apart()) return saved;
  relu_forward(ctx, y, y);
  if (pass.training) saved.tensors.push_back(y);
  return saved;
}

void MaxPool2d::backward(const BackwardCall& call) const {
  if (!call.grad_x) return;
  if (relu_apart()) relu_backward(call.ctx, call.saved.tensors[1], call.grad_y, call.grad_y);
  max_pool2d_backward(call.ctx, config_, call.grad_y, call.saved.tensors[0], call.grad_x, call.grad_x_sums, call.mode);
}

std::string AvgPool2d::describe() const { return describe_pool("avg_pool2d", config_); }

Saved AvgPool2d::forward(const ForwardCall& call) const {
  avg_pool2d_forward(call.ctx, config_, call.x, call.y);
  return {};
}

void AvgPool2d::backward(const BackwardCall& call) const {
  if (call.grad_x) avg_pool2d_backward(call.ctx, config_, call.grad_y, call.grad_x);
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(int64_t height, int64_t width) : height_(height), width_(width) {
  if (height < 1 || width < 1)
    throw ConfigError(
        fmt::format("AdaptiveAvgPool2d: height is {} and width is {}, expected at least 1", height, width));
}

std::string AdaptiveAvgPool2d::describe() const { return fmt::format("adaptive_avg_pool2d({}x{})", height_, width_); }

Shape AdaptiveAvgPool2d::output_shape(const Shape& x) const {
  if (x.rank() != 4)
    throw ShapeError(fmt::format("{}: input has shape {}, expected images (N, H, W, C)", describe(), x.str()));
  return {x[0], height_, width_, x[3]};
}

bool AdaptiveAvgPool2d::is_identity(const Shape& x, const Pass& /*pass*/) const { return x == output_shape(x); }

Saved AdaptiveAvgPool2d::forward(const ForwardCall& call) const {
  adaptive_avg_pool2d_forward(call.ctx, call.x, call.y);
  return {};
}

void AdaptiveAvgPool2d::backward(const BackwardCall& call) const {
  if (call.grad_x) adaptive_avg_pool2d_backward(call.ctx, call.grad_y, call.grad_x);
}

}  // namespace vitrine
