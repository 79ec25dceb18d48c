// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/activations.h"

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

Saved GELU::forward(const ForwardCall& call) const {
  gelu_forward(call.ctx, call.x, call.y, form_);
  Saved saved;
  if (call.pass.training) saved.tensors.push_back(call.x);
  return saved;
}

void GELU::backward(const BackwardCall& call) const {
  if (call.grad_x) gelu_backward(call.ctx, call.saved.tensors[0], call.grad_y, call.grad_x, form_);
}

}  // namespace vitrine
