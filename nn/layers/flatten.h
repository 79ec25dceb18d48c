// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// (N, ...) to (N, product of the rest). An image's elements stay in the order (H, W, C), which the weight of a Linear
/// after it takes into account (CheckpointLayout::linear_chw), and this is the identity. Without a Linear after it, the
/// elements leave the model: those of channels_first have PyTorch's order (C, H, W).
class Flatten final : public Layer {
 public:
  explicit Flatten(bool channels_first = false) : channels_first_(channels_first) {}

  std::string describe() const override { return channels_first_ ? "flatten(channels first)" : "flatten"; }
  Shape output_shape(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool is_identity(const Shape& x, const Pass& pass) const override;
  /// For callers that need the output in other memory, also of an identity: a copy then.
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  bool channels_first_;
};

}  // namespace vitrine
