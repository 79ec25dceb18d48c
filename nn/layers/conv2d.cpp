// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/conv2d.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "nn/layers/weight_gradient.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

Tensor arranged_weight(ExecContext& ctx, const FormedConv2d& formed, const View& weight) {
  Tensor arranged = ctx.allocate(formed.weight.packed_shape(weight.shape[0]), weight.dtype, Category::activations,
                                 "arranged weights");
  pack_images(ctx, formed.weight, weight, arranged);
  return arranged;
}

}  // namespace

Conv2d::Conv2d(const Conv2dLayerConfig& config) : config_(config) {
  if (config.in_channels < 1 || config.out_channels < 1 || config.window < 1 || config.conv.stride < 1 ||
      config.conv.pad < 0) {
    throw ConfigError(
        fmt::format("Conv2d: in_channels is {}, out_channels {}, window {}, stride {} and pad {}; expected pad >= 0, "
                    "all others >= 1",
                    config.in_channels, config.out_channels, config.window, config.conv.stride, config.conv.pad));
  }
}

std::string Conv2d::describe() const {
  return fmt::format("conv2d({0} -> {1}, {2}x{2}, stride {3}, pad {4}{5}){6}", config_.in_channels,
                     config_.out_channels, config_.window, config_.conv.stride, config_.conv.pad,
                     config_.bias ? "" : ", no bias", config_.conv.relu ? " + relu" : "");
}

std::vector<ParamSpec> Conv2d::parameters() const {
  const auto fan_in = static_cast<double>(config_.in_channels * config_.window * config_.window);
  const Init init{Init::Kind::uniform, static_cast<float>(1.0 / std::sqrt(fan_in))};
  std::vector<ParamSpec> specs{
      {"weight", weight_shape(), config_.weight_init.value_or(init), {CheckpointLayout::Kind::conv_oihw}}};
  if (config_.bias) specs.push_back({"bias", {config_.out_channels}, config_.weight_init ? Init{} : init, {}});
  return specs;
}

Shape Conv2d::output_shape(const Shape& x) const {
  if (x.rank() != 4 || x[3] != config_.in_channels) {
    throw ShapeError(
        fmt::format("{}: input has shape {}, expected images (N, H, W, {})", describe(), x.str(), config_.in_channels));
  }
  return conv2d_output_shape(config_.conv, x, weight_shape());
}

ImageForm Conv2d::input_form(const Shape& x, const InputTarget& target) const {
  return conv2d_input_form(config_.conv, x, weight_shape(), target);
}

Saved Conv2d::forward(const ForwardCall& call) const {
  const View bias = config_.bias ? call.params[1] : View{};
  if (call.pass.input_form) {
    const FormedConv2d formed = formed_conv2d(config_.conv, call.pass.input_form, weight_shape());
    const Tensor weight = arranged_weight(call.ctx, formed, call.params[0]);
    conv2d_forward(call.ctx, formed.config, call.x, weight, bias, call.y);
  } else {
    conv2d_forward(call.ctx, config_.conv, call.x, call.params[0], bias, call.y);
  }
  if (!call.pass.training) return {};
  Saved saved;
  saved.tensors.push_back(call.x);
  if (config_.conv.relu) saved.tensors.push_back(call.y);
  return saved;
}

void Conv2d::backward(const BackwardCall& call) const {
  const auto& [ctx, params, saved, grad_y, grad_x, grad_params, mode, pass, buffers, grad_x_sums, hooks] = call;
  View grad_bias = config_.bias ? grad_params[1] : View{};
  if (config_.conv.relu) relu_backward(ctx, saved.tensors[1], grad_y, grad_y, std::exchange(grad_bias, {}), mode);
  if (!pass.input_form) {
    if (const WeightGradient grad(ctx, params[0], grad_params[0], grad_bias, mode); grad)
      conv2d_backward_weight(ctx, config_.conv, saved.tensors[0], grad_y, grad.view(), grad_bias, mode);
    if (grad_x) conv2d_backward_data(ctx, config_.conv, grad_y, params[0], grad_x);
    return;
  }
  const FormedConv2d formed = formed_conv2d(config_.conv, pass.input_form, weight_shape());
  if (grad_params[0] || grad_bias) {
    const Tensor grad = ctx.allocate(formed.weight.packed_shape(config_.out_channels), DType::f32,
                                     Category::activations, "gradient of arranged weights");
    // A bias has no form: if its gradient is added to, so is the arranged one, to zeros.
    const GradMode arranged_mode = grad_bias ? mode : GradMode::overwrite;
    if (arranged_mode == GradMode::accumulate) zero(ctx, grad);
    conv2d_backward_weight(ctx, formed.config, saved.tensors[0], grad_y, grad, grad_bias, arranged_mode);
    if (grad_params[0]) unpack_images(ctx, formed.weight, grad, grad_params[0], mode);
  }
  if (grad_x) conv2d_backward_data(ctx, formed.config, grad_y, arranged_weight(ctx, formed, params[0]), grad_x);
}

}  // namespace vitrine
