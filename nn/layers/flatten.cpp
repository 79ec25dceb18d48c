// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/flatten.h"

#include <fmt/format.h>

#include "nn/layers/check.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {

std::string Flatten::describe() const { return "flatten"; }

std::vector<Shape> Flatten::output_shapes(std::span<const Shape> inputs) const {
  const Shape& x = single_input(*this, inputs);
  if (x.rank() < 1) throw ShapeError(fmt::format("flatten: input has shape {} but (N, ...) is needed", x.str()));
  return {{x[0], x.with_dim0(1).numel()}};
}

bool Flatten::is_identity(std::span<const Shape> /*inputs*/, const Pass& /*pass*/) const { return true; }

Saved Flatten::forward(ExecContext& ctx, ParamViews /*params*/, Tensors inputs, Tensors outputs, const Pass& /*pass*/) const {
  copy(ctx, inputs[0].view().reshape(outputs[0].shape()), outputs[0]);
  return {};
}

void Flatten::backward(ExecContext& ctx, ParamViews /*params*/, const Saved& /*saved*/, Tensors grad_outputs, Tensors grad_inputs,
                       ParamViews /*grad_params*/, GradMode /*mode*/, const Pass& /*pass*/) const {
  if (grad_inputs[0]) copy(ctx, grad_outputs[0].view().reshape(grad_inputs[0].shape()), grad_inputs[0]);
}

}  // namespace vitrine
