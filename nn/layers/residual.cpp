// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/residual.h"

#include <utility>

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "kernels/relu.h"
#include "nn/layers/check.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {

Residual::Residual(std::unique_ptr<Sequential> body, std::unique_ptr<Sequential> shortcut, bool relu)
    : body_(std::move(body)), shortcut_(std::move(shortcut)), relu_(relu), body_parameters_(body_->parameters().size()) {}

std::string Residual::describe() const {
  return fmt::format("residual({} | {}){}", body_->describe(), shortcut_ ? shortcut_->describe() : "identity", relu_ ? " + relu" : "");
}

std::vector<ParamSpec> Residual::parameters() const {
  std::vector<ParamSpec> specs = body_->parameters();
  if (shortcut_) {
    std::vector<ParamSpec> more = shortcut_->parameters();
    specs.insert(specs.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return specs;
}

std::vector<Shape> Residual::output_shapes(std::span<const Shape> inputs) const {
  const Shape& x = single_input(*this, inputs);
  std::vector<Shape> shapes = body_->output_shapes(inputs);
  const Shape added = shortcut_ ? shortcut_->output_shapes(inputs)[0] : x;
  if (!(shapes[0] == added)) {
    throw ShapeError(
        fmt::format("residual: the body makes {} of {} but the shortcut makes {}; the two must agree", shapes[0].str(), x.str(), added.str()));
  }
  return shapes;
}

Saved Residual::forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const {
  // The body's output is not y: a merged ReLU at the body's end may keep it, and the sum would overwrite it.
  const Tensor from_body = ctx.allocate(outputs[0].shape(), outputs[0].dtype(), Category::activations, "residual.body");
  Saved saved;
  saved.parts.push_back(body_->forward(ctx, params.first(body_parameters_), inputs, {&from_body, 1}, pass));
  Tensor from_shortcut = inputs[0];
  if (shortcut_) {
    from_shortcut = ctx.allocate(outputs[0].shape(), outputs[0].dtype(), Category::activations, "residual.shortcut");
    saved.parts.push_back(shortcut_->forward(ctx, params.subspan(body_parameters_), inputs, {&from_shortcut, 1}, pass));
  }
  add(ctx, from_body, from_shortcut, outputs[0]);
  if (relu_) relu_forward(ctx, outputs[0], outputs[0]);
  if (!pass.training) return {};
  if (relu_) saved.tensors.push_back(outputs[0]);
  return saved;
}

void Residual::backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                        GradMode mode, const Pass& pass) const {
  const Tensor& grad_y = grad_outputs[0];
  const Tensor& grad_x = grad_inputs[0];
  if (relu_) relu_backward(ctx, saved.tensors[0], grad_y, grad_y);
  // Each path may use its gradient as scratch, so the first one gets a copy where the second still needs it.
  Tensor grad_body = grad_y;
  if (shortcut_ || grad_x) {
    grad_body = ctx.allocate(grad_y.shape(), grad_y.dtype(), Category::activations, "residual.grad_body");
    copy(ctx, grad_y, grad_body);
  }
  body_->backward(ctx, params.first(body_parameters_), saved.parts[0], {&grad_body, 1}, grad_inputs, grad_params.first(body_parameters_), mode, pass);
  grad_body = {};
  Tensor grad_shortcut = grad_y;
  if (shortcut_) {
    grad_shortcut = {};
    if (grad_x) grad_shortcut = ctx.allocate(grad_x.shape(), grad_x.dtype(), Category::activations, "residual.grad_shortcut");
    shortcut_->backward(ctx, params.subspan(body_parameters_), saved.parts[1], grad_outputs, {&grad_shortcut, 1},
                        grad_params.subspan(body_parameters_), mode, pass);
  }
  if (grad_x) add(ctx, grad_x, grad_shortcut, grad_x);
}

}  // namespace vitrine
