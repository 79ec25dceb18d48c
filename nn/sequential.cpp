// SPDX-License-Identifier: Apache-2.0
#include "nn/sequential.h"

#include <exception>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "nn/layers/check.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {

Sequential::Sequential(std::vector<Part> parts) : parts_(std::move(parts)) {
  std::set<std::string> names;
  int first = 0;
  for (const Part& part : parts_) {
    if (!names.insert(part.name).second) throw ConfigError(fmt::format("Sequential: two parts are named '{}'; names must differ", part.name));
    first_parameter_.push_back(first);
    first += static_cast<int>(part.layer->parameters().size());
  }
  first_parameter_.push_back(first);
}

std::string Sequential::describe() const {
  std::string text;
  for (const Part& part : parts_) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", part.name, part.layer->describe());
  return fmt::format("sequential({})", text);
}

std::vector<ParamSpec> Sequential::parameters() const {
  std::vector<ParamSpec> specs;
  for (const Part& part : parts_) {
    for (ParamSpec& spec : part.layer->parameters()) {
      spec.name = part.name + "." + spec.name;
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

std::vector<Shape> Sequential::output_shapes(std::span<const Shape> inputs) const {
  Shape shape = single_input(*this, inputs);
  for (const Part& part : parts_) {
    try {
      shape = part.layer->output_shapes({&shape, 1})[0];
    } catch (const ShapeError&) {
      rethrow_with_prefix(std::current_exception(), part.name + ": ");
    }
  }
  return {shape};
}

bool Sequential::is_identity(std::span<const Shape> inputs, const Pass& pass) const {
  Shape shape = single_input(*this, inputs);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!part_is_identity(i, shape, pass)) return false;
    shape = parts_[i].layer->output_shapes({&shape, 1})[0];
  }
  return true;
}

Saved Sequential::forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const {
  Tensor output = outputs[0];
  return run_forward(ctx, params, inputs[0], output, pass, nullptr);
}

void Sequential::backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                          GradMode mode, const Pass& pass) const {
  run_backward(ctx, params, saved, grad_outputs[0], grad_inputs[0], grad_params, mode, pass, nullptr);
}

Saved Sequential::forward_from(ExecContext& ctx, ParamViews params, const Tensor& input, Tensor& output, const Pass& pass,
                               const OutputReady& observe) const {
  output = {};
  return run_forward(ctx, params, input, output, pass, observe);
}

void Sequential::backward_from(ExecContext& ctx, ParamViews params, Saved saved, Tensor grad_output, ParamViews grad_params, GradMode mode,
                               const Pass& pass, const GradientsReady& ready) const {
  run_backward(ctx, params, std::move(saved), std::move(grad_output), {}, grad_params, mode, pass, ready);
}

ParamViews Sequential::of_part(ParamViews all, size_t part) const {
  const auto begin = static_cast<size_t>(first_parameter_[part]);
  return all.subspan(begin, static_cast<size_t>(first_parameter_[part + 1]) - begin);
}

bool Sequential::part_is_identity(size_t part, const Shape& input, const Pass& pass) const {
  return parts_[part].layer->is_identity({&input, 1}, pass);
}

// Writes into `output` where it is given, else sets it to what the last part allocated.
Saved Sequential::run_forward(ExecContext& ctx, ParamViews params, Tensor x, Tensor& output, const Pass& pass, const OutputReady& observe) const {
  std::vector<Shape> shapes{x.shape()};  // of each part's input, then of the output
  size_t last = parts_.size();           // the last part that computes; those behind it pass its output on
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!part_is_identity(i, shapes[i], pass)) last = i;
    shapes.push_back(parts_[i].layer->output_shapes({&shapes[i], 1})[0]);
  }
  Saved saved;
  saved.parts.resize(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (part_is_identity(i, shapes[i], pass)) {
      x = x.reshape(shapes[i + 1]);
      continue;
    }
    const LayerScope scope(ctx, parts_[i].name.c_str());
    Tensor y = i == last && output ? output.reshape(shapes[i + 1])
                                   : ctx.allocate(shapes[i + 1], x.dtype(), Category::activations, parts_[i].name + ".output");
    saved.parts[i] = parts_[i].layer->forward(ctx, of_part(params, i), {&x, 1}, {&y, 1}, pass);
    if (observe) observe(static_cast<int>(i), y);
    x = std::move(y);  // lets go of the input, unless the part kept it
  }
  if (!output) {
    output = std::move(x);
  } else if (last == parts_.size()) {
    copy(ctx, x, output);
  }
  if (!pass.training) return {};
  saved.shapes = std::move(shapes);
  return saved;
}

// Writes the gradient of the input where grad_input is given; otherwise ends at the first part with parameters.
void Sequential::run_backward(ExecContext& ctx, ParamViews params, Saved saved, Tensor grad, const Tensor& grad_input, ParamViews grad_params,
                              GradMode mode, const Pass& pass, const GradientsReady& ready) const {
  const std::vector<Shape>& shapes = saved.shapes;
  VITRINE_ASSERT(shapes.size() == parts_.size() + 1, "Sequential::backward needs what a forward pass in training returned");
  size_t first = parts_.size();  // the first part whose backward runs
  for (size_t i = parts_.size(); i-- > 0;) {
    const bool wanted = grad_input ? !part_is_identity(i, shapes[i], pass) : first_parameter_[i] < first_parameter_[i + 1];
    if (wanted) first = i;
  }
  for (size_t i = parts_.size(); i-- > first;) {
    if (part_is_identity(i, shapes[i], pass)) {
      grad = grad.reshape(shapes[i]);
      continue;
    }
    const Layer& layer = *parts_[i].layer;
    const LayerScope scope(ctx, parts_[i].name.c_str());
    Tensor grad_x;
    if (i == first) {
      if (grad_input) grad_x = grad_input.reshape(shapes[i]);
    } else if (layer.backward_in_place()) {
      grad_x = grad;
    } else {
      grad_x = ctx.allocate(shapes[i], grad.dtype(), Category::activations, parts_[i].name + ".grad_input");
    }
    layer.backward(ctx, of_part(params, i), saved.parts[i], {&grad, 1}, {&grad_x, 1}, of_part(grad_params, i), mode, pass);
    saved.parts[i] = {};
    grad = std::move(grad_x);
    if (ready && first_parameter_[i] < first_parameter_[i + 1]) ready(first_parameter_[i]);
  }
  if (grad_input && first == parts_.size()) copy(ctx, grad.reshape(grad_input.shape()), grad_input);
}

}  // namespace vitrine
