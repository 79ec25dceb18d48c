// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/layer_norm.h"

#include <fmt/format.h>

#include "kernels/layer_norm.h"
#include "nn/layers/weight_gradient.h"
#include "runtime/error.h"

namespace vitrine {

LayerNorm::LayerNorm(int64_t features, float eps) : features_(features), eps_(eps) {
  if (features < 1 || !(eps > 0.0F))
    throw ConfigError(fmt::format("LayerNorm: features is {} and eps is {}, expected at least 1 and a positive number",
                                  features, eps));
}

std::string LayerNorm::describe() const { return fmt::format("layer_norm({})", features_); }

std::vector<ParamSpec> LayerNorm::parameters() const {
  const auto spec = [&](const char* name, Init::Kind kind) {
    return ParamSpec{
        .name = name, .shape = {features_}, .init = {kind}, .layout = {}, .of_norm = true, .stays_f32 = true};
  };
  return {spec("weight", Init::Kind::ones), spec("bias", Init::Kind::zeros)};
}

Shape LayerNorm::output_shape(const Shape& x) const {
  if (x.rank() >= 2 && x[x.rank() - 1] == features_) return x;
  throw ShapeError(fmt::format("{}: input has shape {}, expected (N, ..., {})", describe(), x.str(), features_));
}

Saved LayerNorm::forward(const ForwardCall& call) const {
  Tensor statistics;
  if (call.pass.training)
    statistics = call.ctx.allocate({call.x.shape().numel() / features_, 2}, DType::f32, Category::activations,
                                   "layer_norm.statistics");
  layer_norm_forward(call.ctx, eps_, call.x, call.params[0], call.params[1], call.y, statistics);
  Saved saved;
  if (call.pass.training) saved.tensors = {call.x, statistics};
  return saved;
}

void LayerNorm::backward(const BackwardCall& call) const {
  const ConstView x = call.saved.tensors[0], statistics = call.saved.tensors[1];
  const WeightGradient grad_weight(call.ctx, call.params[0], call.grad_params[0], call.grad_params[1], call.mode),
      grad_bias(call.ctx, call.params[1], call.grad_params[1], call.grad_params[0], call.mode);
  if (grad_weight)  // before grad_x, which may be grad_y
    layer_norm_backward_weight(call.ctx, x, call.grad_y, statistics, grad_weight.view(), grad_bias.view(), call.mode);
  if (call.grad_x) layer_norm_backward_data(call.ctx, x, call.grad_y, statistics, call.params[0], call.grad_x);
}

}  // namespace vitrine
