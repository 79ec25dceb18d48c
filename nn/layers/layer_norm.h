// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// Normalizes over the last dimension, of size `features`: torch.nn.LayerNorm. Weight and bias stay f32. Keeps x, and
/// mean and deviation of each row.
/// source  Ba et al. 2016
class LayerNorm final : public Layer {
 public:
  explicit LayerNorm(int64_t features, float eps = 1e-5F);

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  Shape output_shape(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool backward_in_place() const override { return true; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  int64_t features_;
  float eps_;
};

}  // namespace vitrine
