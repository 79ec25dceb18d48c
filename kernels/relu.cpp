// SPDX-License-Identifier: Apache-2.0
#include "kernels/relu.h"

#include "kernels/check.h"
#include "kernels/implementations.h"

namespace vitrine {

void relu_forward(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "relu_forward";
  check::storage(kName, "x", x);
  check::tensor(kName, "x", x, x.shape, x.dtype, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  if (y.data != x.data) check::no_overlap(kName, "y", y, "x", x);
  run(ctx, {kName, {x}, {y}}, VITRINE_IMPLEMENTATIONS(relu_forward), x, y);
}

void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x) {
  constexpr const char* kName = "relu_backward";
  check::storage(kName, "y", y);
  check::tensor(kName, "y", y, y.shape, y.dtype, ctx);
  check::tensor(kName, "grad_y", grad_y, y.shape, y.dtype, ctx);
  check::tensor(kName, "grad_x", grad_x, y.shape, y.dtype, ctx);
  check::no_overlap(kName, "grad_x", grad_x, "y", y);
  if (grad_x.data != grad_y.data) check::no_overlap(kName, "grad_x", grad_x, "grad_y", grad_y);
  run(ctx, {kName, {y, grad_y}, {grad_x}}, VITRINE_IMPLEMENTATIONS(relu_backward), y, grad_y, grad_x);
}

}  // namespace vitrine
