// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/pool2d.h"

#include <fmt/format.h>

#include "kernels/relu.h"
#include "nn/layers/check.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

std::string describe_pool(const char* name, const Pool2dConfig& config) {
  return fmt::format("{0}({1}x{1}, stride {2}, pad {3})", name, config.window, config.stride, config.pad);
}

}  // namespace

std::string MaxPool2d::describe() const { return describe_pool("max_pool2d", config_) + (relu_ ? " + relu" : ""); }

std::vector<Shape> MaxPool2d::output_shapes(std::span<const Shape> inputs) const {
  return {pool2d_output_shape(config_, single_image_input(*this, inputs))};
}

Saved MaxPool2d::forward(ExecContext& ctx, ParamViews /*params*/, Tensors inputs, Tensors outputs, const Pass& pass) const {
  Saved saved;
  if (pass.training) saved.tensors.push_back(ctx.allocate(outputs[0].shape(), DType::u8, Category::activations, "max_pool2d.indices"));
  max_pool2d_forward(ctx, config_, inputs[0], outputs[0], pass.training ? saved.tensors[0].view() : View{});
  if (!relu_) return saved;
  relu_forward(ctx, outputs[0], outputs[0]);
  if (pass.training) saved.tensors.push_back(outputs[0]);
  return saved;
}

void MaxPool2d::backward(ExecContext& ctx, ParamViews /*params*/, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs,
                         ParamViews /*grad_params*/, GradMode /*mode*/, const Pass& /*pass*/) const {
  if (!grad_inputs[0]) return;
  if (relu_) relu_backward(ctx, saved.tensors[1], grad_outputs[0], grad_outputs[0]);
  max_pool2d_backward(ctx, config_, grad_outputs[0], saved.tensors[0], grad_inputs[0]);
}

std::string AvgPool2d::describe() const { return describe_pool("avg_pool2d", config_); }

std::vector<Shape> AvgPool2d::output_shapes(std::span<const Shape> inputs) const {
  return {pool2d_output_shape(config_, single_image_input(*this, inputs))};
}

Saved AvgPool2d::forward(ExecContext& ctx, ParamViews /*params*/, Tensors inputs, Tensors outputs, const Pass& /*pass*/) const {
  avg_pool2d_forward(ctx, config_, inputs[0], outputs[0]);
  return {};
}

void AvgPool2d::backward(ExecContext& ctx, ParamViews /*params*/, const Saved& /*saved*/, Tensors grad_outputs, Tensors grad_inputs,
                         ParamViews /*grad_params*/, GradMode /*mode*/, const Pass& /*pass*/) const {
  if (grad_inputs[0]) avg_pool2d_backward(ctx, config_, grad_outputs[0], grad_inputs[0]);
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(int64_t height, int64_t width) : height_(height), width_(width) {
  if (height < 1 || width < 1) throw ConfigError(fmt::format("AdaptiveAvgPool2d: height {} and width {} must be at least 1", height, width));
}

std::string AdaptiveAvgPool2d::describe() const { return fmt::format("adaptive_avg_pool2d({}x{})", height_, width_); }

std::vector<Shape> AdaptiveAvgPool2d::output_shapes(std::span<const Shape> inputs) const {
  const Shape& x = single_image_input(*this, inputs);
  return {{x[0], height_, width_, x[3]}};
}

bool AdaptiveAvgPool2d::is_identity(std::span<const Shape> inputs, const Pass& /*pass*/) const {
  const Shape& x = single_image_input(*this, inputs);
  return x[1] == height_ && x[2] == width_;
}

Saved AdaptiveAvgPool2d::forward(ExecContext& ctx, ParamViews /*params*/, Tensors inputs, Tensors outputs, const Pass& /*pass*/) const {
  adaptive_avg_pool2d_forward(ctx, inputs[0], outputs[0]);
  return {};
}

void AdaptiveAvgPool2d::backward(ExecContext& ctx, ParamViews /*params*/, const Saved& /*saved*/, Tensors grad_outputs, Tensors grad_inputs,
                                 ParamViews /*grad_params*/, GradMode /*mode*/, const Pass& /*pass*/) const {
  if (grad_inputs[0]) adaptive_avg_pool2d_backward(ctx, grad_outputs[0], grad_inputs[0]);
}

}  // namespace vitrine
