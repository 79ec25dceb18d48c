// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/residual.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

template <class T>
std::vector<T> joined(std::vector<T> first, std::vector<T> second) {
  first.insert(first.end(), std::make_move_iterator(second.begin()), std::make_move_iterator(second.end()));
  return first;
}

}  // namespace

Residual::Residual(std::unique_ptr<Sequential> body, std::unique_ptr<Sequential> shortcut, bool relu)
    : body_(std::move(body)),
      shortcut_(std::move(shortcut)),
      relu_(relu),
      body_parameters_(body_->parameters().size()),
      body_buffers_(body_->buffers().size()) {}

void Residual::prefix_labels(const std::string& prefix) {
  body_->prefix_labels(prefix);
  if (shortcut_) shortcut_->prefix_labels(prefix);
}

std::string Residual::describe() const {
  return fmt::format("residual({} | {}){}", body_->describe(), shortcut_ ? shortcut_->describe() : "identity",
                     relu_ ? " + relu" : "");
}

std::vector<ParamSpec> Residual::parameters() const {
  return joined(body_->parameters(), shortcut_ ? shortcut_->parameters() : std::vector<ParamSpec>());
}

std::vector<BufferSpec> Residual::buffers() const {
  return joined(body_->buffers(), shortcut_ ? shortcut_->buffers() : std::vector<BufferSpec>());
}

std::vector<std::string> Residual::counters() const {
  return joined(body_->counters(), shortcut_ ? shortcut_->counters() : std::vector<std::string>());
}

Shape Residual::output_shape(const Shape& x) const {
  const Shape y = body_->output_shape(x);
  const Shape added = shortcut_ ? shortcut_->output_shape(x) : x;
  if (y == added) return y;
  throw ShapeError(
      fmt::format("residual: input has shape {}, for which the body returns {} and the shortcut {}; their output "
                  "shapes must be equal",
                  x.str(), y.str(), added.str()));
}

Work Residual::forward_work(const Shape& x) const {
  Work work = body_->forward_work(x);
  if (shortcut_) work += shortcut_->forward_work(x);
  return work += {0, 3 * output_shape(x).numel()};  // the sum
}

Saved Residual::forward(const ForwardCall& call) const {
  const auto& [ctx, params, x, y, pass, buffers] = call;
  // The body's output is not y: a merged ReLU at the end of the body may keep it, and the sum would overwrite it.
  const Tensor from_body = ctx.allocate(y.shape(), y.dtype(), Category::activations, "residual.body");
  Saved saved;
  saved.parts.push_back(
      body_->forward({ctx, params.first(body_parameters_), x, from_body, pass, buffers.first(body_buffers_)}));
  Tensor from_shortcut = x;
  if (shortcut_) {
    from_shortcut = ctx.allocate(y.shape(), y.dtype(), Category::activations, "residual.shortcut");
    saved.parts.push_back(shortcut_->forward(
        {ctx, params.subspan(body_parameters_), x, from_shortcut, pass, buffers.subspan(body_buffers_)}));
  }
  add(ctx, from_body, from_shortcut, y);
  if (relu_) relu_forward(ctx, y, y);
  if (!pass.training) return {};
  if (relu_) saved.tensors.push_back(y);
  return saved;
}

void Residual::backward(const BackwardCall& call) const {
  const auto& [ctx, params, saved, grad_y, grad_x, grad_params, mode, pass, buffers, grad_x_sums, hooks] = call;
  if (relu_) relu_backward(ctx, saved.tensors[0], grad_y, grad_y);
  // Each path may use its gradient as scratch, so the first one gets a copy when the second still needs it.
  Tensor grad_body = grad_y;
  if (shortcut_ || grad_x) {
    grad_body = ctx.allocate(grad_y.shape(), grad_y.dtype(), Category::activations, "residual.grad_body");
    copy(ctx, grad_y, grad_body);
  }
  body_->backward({ctx, params.first(body_parameters_), saved.parts[0], grad_body, grad_x,
                   grad_params.first(body_parameters_), mode, pass, buffers.first(body_buffers_), View(), hooks});
  grad_body = {};
  Tensor grad_shortcut = grad_y;
  if (shortcut_) {
    grad_shortcut = {};
    if (grad_x)
      grad_shortcut = ctx.allocate(grad_x.shape(), grad_x.dtype(), Category::activations, "residual.grad_shortcut");
    shortcut_->backward({ctx, params.subspan(body_parameters_), saved.parts[1], grad_y, grad_shortcut,
                         grad_params.subspan(body_parameters_), mode, pass, buffers.subspan(body_buffers_)});
  }
  if (grad_x) add(ctx, grad_x, grad_shortcut, grad_x);
}

void Residual::forward_empty(const EmptyCall& call) const {
  const auto& [ctx, x, pass, buffers, hooks] = call;
  body_->forward_empty({ctx, x, pass, buffers.first(body_buffers_)});
  if (shortcut_) shortcut_->forward_empty({ctx, x, pass, buffers.subspan(body_buffers_)});
}

void Residual::backward_empty(const EmptyCall& call) const {
  const auto& [ctx, x, pass, buffers, hooks] = call;
  body_->backward_empty({ctx, x, pass, buffers.first(body_buffers_), hooks});
  if (shortcut_) shortcut_->backward_empty({ctx, x, pass, buffers.subspan(body_buffers_)});
}

}  // namespace vitrine
