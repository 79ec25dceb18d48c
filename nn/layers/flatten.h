// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// (N, ...) to (N, product of the rest): always the identity, under another shape. Of images, the order is (H, W, C); see
/// CheckpointLayout::linear_chw.
class Flatten final : public Layer {
 public:
  std::string describe() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  bool is_identity(std::span<const Shape> inputs, const Pass& pass) const override;
  /// For callers that want the output elsewhere: a copy.
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;
};

}  // namespace vitrine
