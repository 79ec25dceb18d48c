// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// (N, ...) to (N, product of the rest): always the identity. The order of an image's elements is (H, W, C); see
/// CheckpointLayout::linear_chw.
class Flatten final : public Layer {
 public:
  std::string describe() const override { return "flatten"; }
  Shape output_shape(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  bool is_identity(const Shape& /*x*/, const Pass& /*pass*/) const override { return true; }
  /// For callers that need the output in other memory: a copy.
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;
};

}  // namespace vitrine
