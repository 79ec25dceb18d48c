// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "nn/layer.h"
#include "runtime/copy.h"

namespace vitrine::test {

/// The identity, which returns an infinity on one device when it is armed: in its gradient, or in its output of one step.
class Planted final : public Layer {
 public:
  struct Trigger {
    bool armed = false;
    int device = 0;
    int64_t forward_step = -1;  // from 0
  };
  explicit Planted(const Trigger& trigger) : trigger_(trigger) {}

  std::string describe() const override { return "planted"; }
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override { return {inputs.begin(), inputs.end()}; }
  Saved forward(ExecContext& ctx, ParamViews, Tensors inputs, Tensors outputs, const Pass& pass) const override {
    copy(ctx, inputs[0], outputs[0]);
    if (pass.training && pass.step == trigger_.forward_step) plant(ctx, outputs[0]);
    return {};
  }
  void backward(ExecContext& ctx, ParamViews, const Saved&, Tensors grad_outputs, Tensors grad_inputs, ParamViews, GradMode,
                const Pass&) const override {
    if (!grad_inputs[0]) return;
    copy(ctx, grad_outputs[0], grad_inputs[0]);
    if (trigger_.armed) plant(ctx, grad_inputs[0]);
  }

 private:
  void plant(ExecContext& ctx, const Tensor& tensor) const {
    if (ctx.ordinal() != trigger_.device) return;
    static const float kInfinity = std::numeric_limits<float>::infinity();
    static constexpr uint16_t kHalfInfinity = 0x7C00;
    const View one = tensor.view().reshape({tensor.numel()}).rows(0, 1);
    const void* source = one.dtype == DType::f32 ? static_cast<const void*>(&kInfinity) : &kHalfInfinity;
    copy(ctx, ConstView(source, {1}, one.dtype, DeviceId::host()), one);
  }

  const Trigger& trigger_;
};

}  // namespace vitrine::test
