// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/relu.h"

#include "kernels/relu.h"
#include "nn/layers/check.h"

namespace vitrine {

std::string ReLU::describe() const { return "relu"; }

std::vector<Shape> ReLU::output_shapes(std::span<const Shape> inputs) const { return {single_input(*this, inputs)}; }

Saved ReLU::forward(ExecContext& ctx, ParamViews /*params*/, Tensors inputs, Tensors outputs, const Pass& pass) const {
  relu_forward(ctx, inputs[0], outputs[0]);
  Saved saved;
  if (pass.training) saved.tensors.push_back(outputs[0]);
  return saved;
}

void ReLU::backward(ExecContext& ctx, ParamViews /*params*/, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs,
                    ParamViews /*grad_params*/, GradMode /*mode*/, const Pass& /*pass*/) const {
  if (grad_inputs[0]) relu_backward(ctx, saved.tensors[0], grad_outputs[0], grad_inputs[0]);
}

}  // namespace vitrine
