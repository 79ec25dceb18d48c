// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/flatten.h"

#include <fmt/format.h>

#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {

Shape Flatten::output_shape(const Shape& x) const {
  if (x.rank() < 1) throw ShapeError(fmt::format("flatten: input has shape {}, expected (N, ...)", x.str()));
  return {x[0], x.with_dim0(1).numel()};
}

Saved Flatten::forward(const ForwardCall& call) const {
  copy(call.ctx, call.x.view().reshape(call.y.shape()), call.y);
  return {};
}

void Flatten::backward(const BackwardCall& call) const {
  if (call.grad_x) copy(call.ctx, call.grad_y.view().reshape(call.grad_x.shape()), call.grad_x);
}

}  // namespace vitrine
