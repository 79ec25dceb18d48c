// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <vitrine/nn/layer.h>

namespace vitrine {

struct LinearConfig {
  int64_t in_features = 0;
  int64_t out_features = 0;
  bool bias = true;
  bool relu = false;                     // merged: y = max(x w^T + bias, 0)
  std::optional<Init> weight_init = {};  // the bias then starts at zero; else both as torch.nn.Linear's
  CheckpointLayout weight_layout = {};   // linear_chw when it follows a flatten of images
};

/// y (N, ..., O) = x (N, ..., I) w^T + bias over any dimensions between, as torch.nn.Linear, then ReLU where merged. Parameters: weight (O, I),
/// bias (O). Keeps x, and y where ReLU is merged.
class Linear final : public Layer {
 public:
  /// throws ConfigError on sizes below 1 or a weight layout that does not have in_features.
  explicit Linear(const LinearConfig& config);
  const LinearConfig& config() const { return config_; }

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  OutputNeed output_need() const override { return config_.relu ? OutputNeed::sign : OutputNeed::nothing; }
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

 private:
  LinearConfig config_;
};

}  // namespace vitrine
