// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/relu.h"

#include "kernels/relu.h"

namespace vitrine {

Saved ReLU::forward(const ForwardCall& call) const {
  relu_forward(call.ctx, call.x, call.y);
  Saved saved;
  if (call.pass.training) saved.tensors.push_back(call.y);
  return saved;
}

void ReLU::backward(const BackwardCall& call) const {
  if (call.grad_x)
    relu_backward(call.ctx, call.saved.tensors[0], call.grad_y, call.grad_x, call.grad_x_sums, call.mode);
}

}  // namespace vitrine
