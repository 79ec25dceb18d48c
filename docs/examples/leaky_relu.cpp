// SPDX-License-Identifier: Apache-2.0
#include "leaky_relu.h"

#include <vitrine/runtime/error.h>
#include <vitrine/runtime/parallel_for.h>

using namespace vitrine;

namespace {

void check_dtype(const ConstView& x) {
  if (x.dtype != DType::f32) throw DtypeError(std::string("leaky_relu: x is ") + dtype_name(x.dtype) + ", expected f32; train in f32");
}

}  // namespace

std::string LeakyReLU::describe() const { return "leaky_relu(" + std::to_string(slope_) + ")"; }

std::vector<Shape> LeakyReLU::output_shapes(std::span<const Shape> inputs) const {
  if (inputs.size() != 1) throw ShapeError("leaky_relu: has " + std::to_string(inputs.size()) + " inputs, needs one");
  return {inputs[0]};
}

Saved LeakyReLU::forward(ExecContext& ctx, ParamViews, Tensors inputs, Tensors outputs, const Pass& pass) const {
  const ConstView x = inputs[0];
  const View y = outputs[0];
  check_dtype(x);
  ctx.dispatch({"leaky_relu_forward", {x}, {y}}, [x, y, slope = slope_] {
    const float* const from = x.as<float>();
    float* const to = y.as<float>();
    parallel_for(x.numel(), 4096, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] > 0 ? from[i] : slope * from[i];
    });
  });
  Saved saved;
  if (pass.training) saved.tensors.push_back(inputs[0]);
  return saved;
}

void LeakyReLU::backward(ExecContext& ctx, ParamViews, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews, GradMode,
                         const Pass&) const {
  if (!grad_inputs[0]) return;
  const ConstView x = saved.tensors[0];
  const ConstView grad_y = grad_outputs[0];
  const View grad_x = grad_inputs[0];
  ctx.dispatch({"leaky_relu_backward", {x, grad_y}, {grad_x}}, [x, grad_y, grad_x, slope = slope_] {
    const float* const from = grad_y.as<float>();
    const float* const at = x.as<float>();
    float* const to = grad_x.as<float>();
    parallel_for(x.numel(), 4096, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] * (at[i] > 0 ? 1.0F : slope);
    });
  });
}
