// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

/// y = x where x > 0, otherwise slope * x. Any shape. Keeps x.
class LeakyReLU final : public vitrine::Layer {
 public:
  explicit LeakyReLU(float slope) : slope_(slope) {}

  std::string describe() const override;
  vitrine::Shape output_shape(const vitrine::Shape& x) const override { return x; }
  vitrine::Saved forward(const vitrine::ForwardCall& call) const override;
  void backward(const vitrine::BackwardCall& call) const override;

 private:
  float slope_;
};
