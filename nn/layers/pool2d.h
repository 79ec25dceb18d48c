// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/pool2d.h>
#include <vitrine/nn/layer.h>

namespace vitrine {

/// Maximum over windows of images (N, H, W, C), then ReLU where merged. Keeps one byte for each output, where in its window the maximum was, and y
/// where ReLU is merged. A ReLU gives the same, bit for bit, before the maximum and behind it; behind it, the larger tensor is not kept for its sign.
class MaxPool2d final : public Layer {
 public:
  explicit MaxPool2d(const Pool2dConfig& config, bool relu = false) : config_(config), relu_(relu) {}

  std::string describe() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  OutputNeed output_need() const override { return relu_ ? OutputNeed::sign : OutputNeed::nothing; }
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

 private:
  Pool2dConfig config_;
  bool relu_;
};

/// Mean over windows, padding counted. Keeps nothing.
class AvgPool2d final : public Layer {
 public:
  explicit AvgPool2d(const Pool2dConfig& config) : config_(config) {}

  std::string describe() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

 private:
  Pool2dConfig config_;
};

/// Mean over windows chosen so that the output has the given height and width. Keeps nothing; the identity where the input has that size.
class AdaptiveAvgPool2d final : public Layer {
 public:
  /// throws ConfigError on sizes below 1.
  AdaptiveAvgPool2d(int64_t height, int64_t width);

  std::string describe() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool is_identity(std::span<const Shape> inputs, const Pass& pass) const override;
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

 private:
  int64_t height_, width_;
};

}  // namespace vitrine
