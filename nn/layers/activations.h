// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/elementwise.h>
#include <vitrine/nn/layer.h>

namespace vitrine {

/// y = max(x, 0), in place when possible. Keeps y. After Linear, Conv2d or MaxPool2d, their merged ReLU is cheaper.
class ReLU final : public Layer {
 public:
  std::string describe() const override { return "relu"; }
  Shape output_shape(const Shape& x) const override { return x; }
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::sign; }
  bool forward_in_place() const override { return true; }
  bool backward_in_place() const override { return true; }
  bool sums_grad_x() const override { return true; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;
};

/// y = x * P(x), where P is the distribution of the standard normal or an approximation: torch.nn.GELU. Keeps x.
/// source  Hendrycks & Gimpel 2016
class GELU final : public Layer {
 public:
  explicit GELU(GeluForm form = GeluForm::erf) : form_(form) {}

  std::string describe() const override { return form_ == GeluForm::tanh ? "gelu(tanh)" : "gelu"; }
  Shape output_shape(const Shape& x) const override { return x; }
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool backward_in_place() const override { return true; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  GeluForm form_;
};

}  // namespace vitrine
