// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

/// y = x where x > 0, otherwise weight[f] * x, with one learned slope for each feature f. x is (N, F), f32. Starts as a
/// ReLU. Keeps x.
class PReLU final : public vitrine::Layer {
 public:
  explicit PReLU(int64_t features) : features_(features) {}

  std::string describe() const override;
  std::vector<vitrine::ParamSpec> parameters() const override;
  vitrine::Shape output_shape(const vitrine::Shape& x) const override;
  vitrine::Saved forward(const vitrine::ForwardCall& call) const override;
  void backward(const vitrine::BackwardCall& call) const override;

 private:
  int64_t features_;
};
