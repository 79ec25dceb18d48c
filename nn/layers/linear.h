// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <vitrine/nn/layer.h>

namespace vitrine {

struct LinearConfig {
  int64_t in_features = 0;
  int64_t out_features = 0;
  bool bias = true;
  bool relu = false;                     // merged: y = max(x w^T + bias, 0)
  std::optional<Init> weight_init = {};  // given: the bias starts at zero; otherwise both start as torch.nn.Linear's
  CheckpointLayout weight_layout = {};   // linear_chw after a flatten of images
  std::string shared_weight = {};        // not empty: the weight is this parameter (Layer::shared_parameter)
};

/// y (N, ..., O) = x (N, ..., I) w^T + bias with any number of dimensions in between, as torch.nn.Linear, then ReLU if
/// merged. Parameters: weight (O, I), bias (O). Keeps x, and y if ReLU is merged.
class Linear final : public Layer {
 public:
  /// throws ConfigError when a size is below 1, the weight layout does not have in_features elements, or a shared
  /// weight
  ///        has a bias.
  explicit Linear(const LinearConfig& config);
  const LinearConfig& config() const { return config_; }

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::string shared_parameter() const override { return config_.shared_weight; }
  Work forward_work(const Shape& x) const override;
  Shape output_shape(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return config_.relu ? OutputNeed::sign : OutputNeed::nothing; }
  int bias_parameter() const override { return config_.bias && !config_.relu ? 1 : -1; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  LinearConfig config_;
};

}  // namespace vitrine
