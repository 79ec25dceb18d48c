// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// Zeroes elements with probability p in training; the identity in evaluation or when p is 0. Keeps nothing: backward
/// draws the mask again.
class Dropout final : public Layer {
 public:
  /// index  position among the dropouts of the model, so that each draws its own random numbers
  /// throws ConfigError when p is not in [0, 1)
  Dropout(float p, int64_t index);

  std::string describe() const override;
  Shape output_shape(const Shape& x) const override { return x; }
  bool can_be_replayed() const override { return true; }
  bool is_identity(const Shape& x, const Pass& pass) const override;
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool forward_in_place() const override { return true; }
  bool backward_in_place() const override { return true; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  float p_;
  int64_t index_;
};

}  // namespace vitrine
