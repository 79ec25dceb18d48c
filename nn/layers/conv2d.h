// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <vitrine/kernels/conv2d.h>
#include <vitrine/nn/layer.h>

namespace vitrine {

struct Conv2dLayerConfig {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t window = 0;  // height and width
  bool bias = true;
  std::optional<Init> weight_init = {};  // given: the bias starts at zero; otherwise both start as torch.nn.Conv2d's
  Conv2dConfig conv = {};                // stride, pad, merged ReLU
};

/// Convolution of images x (N, H, W, C) to y (N, P, Q, K), then ReLU if merged. Parameters: weight (K, R, S, C), bias
/// (K). Keeps x, and y if ReLU is merged. If x is in a form (conv2d_input_form), each pass arranges the weights like x,
/// and copies their gradient back to the normal layout.
class Conv2d final : public Layer {
 public:
  /// throws ConfigError when a size is below 1 or pad is negative.
  explicit Conv2d(const Conv2dLayerConfig& config);
  const Conv2dLayerConfig& config() const { return config_; }

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  Shape output_shape(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  ImageForm input_form(const Shape& x, const InputTarget& target) const override;
  OutputNeed output_need() const override { return config_.conv.relu ? OutputNeed::sign : OutputNeed::nothing; }
  int bias_parameter() const override { return config_.bias && !config_.conv.relu ? 1 : -1; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  Shape weight_shape() const { return {config_.out_channels, config_.window, config_.window, config_.in_channels}; }

  Conv2dLayerConfig config_;
};

}  // namespace vitrine
