// SPDX-License-Identifier: Apache-2.0
#include "leaky_relu.h"

#include <vitrine/runtime/error.h>
#include <vitrine/runtime/parallel_for.h>

using namespace vitrine;

namespace {

void check_dtype(const ConstView& x) {
  if (x.dtype != DType::f32)
    throw DtypeError(std::string("leaky_relu: x is ") + dtype_name(x.dtype) + ", expected f32; train in f32");
}

}  // namespace

std::string LeakyReLU::describe() const { return "leaky_relu(" + std::to_string(slope_) + ")"; }

Saved LeakyReLU::forward(const ForwardCall& call) const {
  const ConstView x = call.x;
  const View y = call.y;
  check_dtype(x);
  call.ctx.dispatch({"leaky_relu_forward", {x}, {y}}, [x, y, slope = slope_] {
    const float* const from = x.as<float>();
    float* const to = y.as<float>();
    parallel_for(x.numel(), 4096, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] > 0 ? from[i] : slope * from[i];
    });
  });
  Saved saved;
  if (call.pass.training) saved.tensors.push_back(call.x);
  return saved;
}

void LeakyReLU::backward(const BackwardCall& call) const {
  if (!call.grad_x) return;
  const ConstView x = call.saved.tensors[0];
  const ConstView grad_y = call.grad_y;
  const View grad_x = call.grad_x;
  call.ctx.dispatch({"leaky_relu_backward", {x, grad_y}, {grad_x}}, [x, grad_y, grad_x, slope = slope_] {
    const float* const from = grad_y.as<float>();
    const float* const at = x.as<float>();
    float* const to = grad_x.as<float>();
    parallel_for(x.numel(), 4096, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] * (at[i] > 0 ? 1.0F : slope);
    });
  });
}
