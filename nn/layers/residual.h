// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// y = body(x) + shortcut(x), then ReLU if asked for. Without a shortcut, x itself is added. Parameters are those of body, then of shortcut, under
/// the names that these give them. source  He et al. 2016
class Residual final : public Layer {
 public:
  /// shortcut may be null
  Residual(std::unique_ptr<Sequential> body, std::unique_ptr<Sequential> shortcut, bool relu);

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  OutputNeed output_need() const override { return relu_ ? OutputNeed::sign : OutputNeed::nothing; }
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

 private:
  std::unique_ptr<Sequential> body_;
  std::unique_ptr<Sequential> shortcut_;
  bool relu_;
  size_t body_parameters_;
};

}  // namespace vitrine
