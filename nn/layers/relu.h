// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// y = max(x, 0), over x where that is free. Keeps y. Behind Linear, Conv2d or MaxPool2d, their merged ReLU is cheaper.
class ReLU final : public Layer {
 public:
  std::string describe() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  OutputNeed output_need() const override { return OutputNeed::sign; }
  bool forward_in_place() const override { return true; }
  bool backward_in_place() const override { return true; }
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;
};

}  // namespace vitrine
