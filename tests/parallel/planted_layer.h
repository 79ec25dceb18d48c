// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <limits>

#include "nn/layer.h"
#include "runtime/copy.h"

namespace vitrine::test {

/// The identity, for tests to plant something in.
class Identity : public Layer {
 public:
  std::string describe() const override { return "planted"; }
  Shape output_shape(const Shape& x) const override { return x; }
  Saved forward(const ForwardCall& call) const override {
    if (call.ctx.backend() != Backend::meta) begin(call.ctx, false);
    copy(call.ctx, call.x, call.y);
    return {};
  }
  void backward(const BackwardCall& call) const override {
    if (call.ctx.backend() != Backend::meta) begin(call.ctx, true);
    if (call.grad_x) copy(call.ctx, call.grad_y, call.grad_x);
  }

 private:
  /// Each pass begins with it, but in planning.
  virtual void begin(ExecContext& /*ctx*/, bool /*backward*/) const {}
};

/// The identity, until its device runs out of memory.
class RunsOutOfMemory final : public Identity {
 public:
  explicit RunsOutOfMemory(const std::atomic<bool>& armed) : armed_(armed) {}

 private:
  void begin(ExecContext& ctx, bool backward) const override {
    if (armed_ && !backward) ctx.allocate({int64_t{1} << 40}, DType::f32, Category::activations, "what does not fit");
  }

  const std::atomic<bool>& armed_;
};

/// The identity, which returns an infinity on one device when it is armed: in its gradient, or in its output of one
/// step.
class ReturnsInfinity final : public Identity {
 public:
  struct Trigger {
    bool armed = false;
    int device = 0;
    int64_t forward_step = -1;  // from 0
  };
  explicit ReturnsInfinity(const Trigger& trigger) : trigger_(trigger) {}

  Saved forward(const ForwardCall& call) const override {
    Saved saved = Identity::forward(call);
    if (call.pass.training && call.pass.step == trigger_.forward_step) plant(call.ctx, call.y);
    return saved;
  }
  void backward(const BackwardCall& call) const override {
    Identity::backward(call);
    if (trigger_.armed && call.grad_x) plant(call.ctx, call.grad_x);
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
