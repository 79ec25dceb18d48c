// SPDX-License-Identifier: Apache-2.0
#include "leaky_relu.h"

#include <vitrine/runtime/error.h>

using namespace vitrine;

std::string LeakyReLU::describe() const { return "leaky_relu(" + std::to_string(slope_) + ")"; }

std::vector<Shape> LeakyReLU::output_shapes(std::span<const Shape> inputs) const {
  if (inputs.size() != 1) throw ShapeError("leaky_relu: has " + std::to_string(inputs.size()) + " inputs, needs one");
  return {inputs[0]};
}

Saved LeakyReLU::forward(ExecContext& ctx, ParamViews, Tensors inputs, Tensors outputs, const Pass&) const {
  const ConstView x = inputs[0];
  const View y = outputs[0];
  ctx.dispatch({"leaky_relu_forward", {x}, {y}}, [x, y, slope = slope_] {
    for (int64_t i = 0; i < x.numel(); ++i) {
      const float value = x.as<float>()[i];
      y.as<float>()[i] = value > 0 ? value : slope * value;
    }
  });
  Saved saved;
  saved.tensors.push_back(inputs[0]);
  return saved;
}

void LeakyReLU::backward(ExecContext& ctx, ParamViews, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews, GradMode,
                         const Pass&) const {
  if (!grad_inputs[0]) return;
  const ConstView x = saved.tensors[0];
  const ConstView grad_y = grad_outputs[0];
  const View grad_x = grad_inputs[0];
  ctx.dispatch({"leaky_relu_backward", {x, grad_y}, {grad_x}}, [x, grad_y, grad_x, slope = slope_] {
    for (int64_t i = 0; i < x.numel(); ++i) grad_x.as<float>()[i] = grad_y.as<float>()[i] * (x.as<float>()[i] > 0 ? 1.0F : slope);
  });
}
