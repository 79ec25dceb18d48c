// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// Zeroes elements with probability p in training; the identity in evaluation or with p = 0. Keeps nothing: the mask is drawn again.
class Dropout final : public Layer {
 public:
  /// index  which dropout of the model it is, so that each draws numbers of its own
  /// throws ConfigError when p is not in [0, 1)
  Dropout(float p, int64_t index);

  std::string describe() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  bool is_identity(std::span<const Shape> inputs, const Pass& pass) const override;
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool forward_in_place() const override { return true; }
  bool backward_in_place() const override { return true; }
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

 private:
  float p_;
  int64_t index_;
};

}  // namespace vitrine
