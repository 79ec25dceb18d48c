// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/pool2d.h>
#include <vitrine/nn/layer.h>

namespace vitrine {

/// Maximum over windows of images (N, H, W, C), then ReLU if merged, in one pass. Keeps one byte per output: the
/// position of the maximum in its window, which also marks outputs that the ReLU zeroed. A 16x16 window uses all 256
/// indices, so that the ReLU is a separate pass, and y is kept. A ReLU gives the same bits before and after the
/// maximum; after it, the larger tensor need not be kept for its sign.
class MaxPool2d final : public Layer {
 public:
  explicit MaxPool2d(const Pool2dConfig& config, bool relu = false) : config_(config), relu_(relu) {}

  std::string describe() const override;
  Shape output_shape(const Shape& x) const override { return pool2d_output_shape(config_, x); }
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return relu_apart() ? OutputNeed::sign : OutputNeed::nothing; }
  bool sums_grad_x() const override { return true; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  bool relu_apart() const { return relu_ && config_.window > kMostReluWindow; }

  Pool2dConfig config_;
  bool relu_;
};

/// Mean over windows, padding counted. Keeps nothing.
class AvgPool2d final : public Layer {
 public:
  explicit AvgPool2d(const Pool2dConfig& config) : config_(config) {}

  std::string describe() const override;
  Shape output_shape(const Shape& x) const override { return pool2d_output_shape(config_, x); }
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  Pool2dConfig config_;
};

/// Mean over windows chosen so that the output has the given height and width. Keeps nothing; the identity when the
/// input already has that size.
class AdaptiveAvgPool2d final : public Layer {
 public:
  /// throws ConfigError when a size is below 1.
  AdaptiveAvgPool2d(int64_t height, int64_t width);

  std::string describe() const override;
  Shape output_shape(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool is_identity(const Shape& x, const Pass& pass) const override;
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  int64_t height_, width_;
};

}  // namespace vitrine
