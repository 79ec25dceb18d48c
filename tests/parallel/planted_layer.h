// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <limits>

#include "nn/layer.h"
#include "runtime/copy.h"

namespace vitrine::test {

/// The identity, until its device runs out of memory.
class RunsOutOfMemory final : public Layer {
 public:
  explicit RunsOutOfMemory(const std::atomic<bool>& armed) : armed_(armed) {}
  std::string describe() const override { return "planted"; }
  Shape output_shape(const Shape& x) const override { return x; }
  Saved forward(const ForwardCall& call) const override {
    if (armed_ && call.ctx.backend() != Backend::meta)
      call.ctx.allocate({int64_t{1} << 40}, DType::f32, Category::activations, "what does not fit");
    copy(call.ctx, call.x, call.y);
    return {};
  }
  void backward(const BackwardCall& call) const override {
    if (call.grad_x) copy(call.ctx, call.grad_y, call.grad_x);
  }

 private:
  const std::atomic<bool>& armed_;
};

/// The identity, which returns an infinity on one device when it is armed: in its gradient, or in its output of one
/// step.
class ReturnsInfinity final : public Layer {
 public:
  struct Trigger {
    bool armed = false;
    int device = 0;
    int64_t forward_step = -1;  // from 0
  };
  explicit ReturnsInfinity(const Trigger& trigger) : trigger_(trigger) {}

  std::string describe() const override { return "planted"; }
  Shape output_shape(const Shape& x) const override { return x; }
  Saved forward(const ForwardCall& call) const override {
    copy(call.ctx, call.x, call.y);
    if (call.pass.training && call.pass.step == trigger_.forward_step) plant(call.ctx, call.y);
    return {};
  }
  void backward(const BackwardCall& call) const override {
    if (!call.grad_x) return;
    copy(call.ctx, call.grad_y, call.grad_x);
    if (trigger_.armed) plant(call.ctx, call.grad_x);
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
