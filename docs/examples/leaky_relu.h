// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

/// y = x where x > 0, otherwise slope * x. Any shape. Keeps x.
class LeakyReLU final : public vitrine::Layer {
 public:
  explicit LeakyReLU(float slope) : slope_(slope) {}

  std::string describe() const override;
  std::vector<vitrine::Shape> output_shapes(std::span<const vitrine::Shape> inputs) const override;
  vitrine::Saved forward(vitrine::ExecContext& ctx, vitrine::ParamViews params, vitrine::Tensors inputs, vitrine::Tensors outputs,
                         const vitrine::Pass& pass) const override;
  void backward(vitrine::ExecContext& ctx, vitrine::ParamViews params, const vitrine::Saved& saved, vitrine::Tensors grad_outputs,
                vitrine::Tensors grad_inputs, vitrine::ParamViews grad_params, vitrine::GradMode mode, const vitrine::Pass& pass) const override;

 private:
  float slope_;
};
