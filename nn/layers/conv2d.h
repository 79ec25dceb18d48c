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
  std::optional<Init> weight_init = {};  // the bias then starts at zero; else both as torch.nn.Conv2d's
  Conv2dConfig conv = {};                // stride, pad, merged ReLU
};

/// Convolution of images (N, H, W, C) to (N, P, Q, K), then ReLU where merged. Parameters: weight (K, R, S, C), bias (K). Keeps x, and y where
/// ReLU is merged.
class Conv2d final : public Layer {
 public:
  /// throws ConfigError on sizes below 1 or a negative pad.
  explicit Conv2d(const Conv2dLayerConfig& config);
  const Conv2dLayerConfig& config() const { return config_; }

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  OutputNeed output_need() const override { return config_.conv.relu ? OutputNeed::sign : OutputNeed::nothing; }
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

 private:
  Shape weight_shape() const { return {config_.out_channels, config_.window, config_.window, config_.in_channels}; }

  Conv2dLayerConfig config_;
};

}  // namespace vitrine
