// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/linear.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "nn/layers/weight_gradient.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

/// (..., features) as a matrix of rows.
View as_rows(const View& x) {
  const int64_t features = x.shape[x.shape.rank() - 1];
  return x.reshape({x.numel() / features, features});
}

}  // namespace

Linear::Linear(const LinearConfig& config) : config_(config) {
  if (config.in_features < 1 || config.out_features < 1) {
    throw ConfigError(fmt::format("Linear: in_features is {} and out_features is {}, expected at least 1",
                                  config.in_features, config.out_features));
  }
  const CheckpointLayout& layout = config.weight_layout;
  if (layout.kind == CheckpointLayout::Kind::conv_oihw ||
      (layout.kind == CheckpointLayout::Kind::linear_chw && layout.h * layout.w * layout.c != config.in_features)) {
    throw ConfigError(fmt::format("Linear: weight_layout is ({}, {}, {}), expected {} elements, as in_features",
                                  layout.h, layout.w, layout.c, config.in_features));
  }
  if (!config.shared_weight.empty() && config.bias)
    throw ConfigError(
        fmt::format("Linear: the weight is {}, so it has no bias; set bias to false", config.shared_weight));
}

std::string Linear::describe() const {
  const bool shared = !config_.shared_weight.empty();
  return fmt::format("linear({} -> {}{}){}", config_.in_features, config_.out_features,
                     shared         ? ", weight " + config_.shared_weight
                     : config_.bias ? ""
                                    : ", no bias",
                     config_.relu ? " + relu" : "");
}

Work Linear::forward_work(const Shape& x) const {
  const int64_t rows = x.numel() / config_.in_features, weights = config_.in_features * config_.out_features;
  const int64_t bias = config_.bias ? config_.out_features : 0;
  return {2 * rows * weights, x.numel() + rows * config_.out_features + weights + bias};
}

std::vector<ParamSpec> Linear::parameters() const {
  if (!config_.shared_weight.empty()) return {};
  const Init init{Init::Kind::uniform, static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.in_features)))};
  std::vector<ParamSpec> specs{{"weight",
                                {config_.out_features, config_.in_features},
                                config_.weight_init.value_or(init),
                                config_.weight_layout}};
  if (config_.bias) specs.push_back({"bias", {config_.out_features}, config_.weight_init ? Init{} : init, {}});
  return specs;
}

Shape Linear::output_shape(const Shape& x) const {
  if (x.rank() < 2 || x[x.rank() - 1] != config_.in_features) {
    throw ShapeError(
        fmt::format("{}: input has shape {}, expected (N, ..., {})", describe(), x.str(), config_.in_features));
  }
  return x.with_last(config_.out_features);
}

Saved Linear::forward(const ForwardCall& call) const {
  linear_forward(call.ctx, as_rows(call.x), call.params[0], config_.bias ? call.params[1] : View{}, config_.relu,
                 as_rows(call.y));
  if (!call.pass.training) return {};
  Saved saved;
  saved.tensors.push_back(call.x);
  if (config_.relu) saved.tensors.push_back(call.y);
  return saved;
}

void Linear::backward(const BackwardCall& call) const {
  const auto& [ctx, params, saved, grad_y, grad_x, grad_params, mode, pass, buffers, grad_x_sums, hooks] = call;
  const View grad_rows = as_rows(grad_y);
  View grad_bias = config_.bias ? grad_params[1] : View{};
  if (config_.relu)
    relu_backward(ctx, as_rows(saved.tensors[1]), grad_rows, grad_rows, std::exchange(grad_bias, {}), mode);
  if (const WeightGradient grad(ctx, params[0], grad_params[0], grad_bias, mode); grad)
    linear_backward_weight(ctx, as_rows(saved.tensors[0]), grad_rows, grad.view(), grad_bias, mode);
  if (grad_x) linear_backward_data(ctx, grad_rows, params[0], as_rows(grad_x));
}

}  // namespace vitrine
