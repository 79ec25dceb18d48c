// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// y = body(x) + shortcut(x), then ReLU if `relu`. Without a shortcut, x itself is added. Has the
/// parameters, buffers and counters of body, then of shortcut, under their names. source  He et al. 2016
class Residual final : public Layer {
 public:
  /// shortcut may be null
  Residual(std::unique_ptr<Sequential> body, std::unique_ptr<Sequential> shortcut, bool relu);

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::vector<BufferSpec> buffers() const override;
  std::vector<std::string> counters() const override;
  Shape output_shape(const Shape& x) const override;
  Work forward_work(const Shape& x) const override;
  bool handles_leaves() const override { return true; }
  /// With a shortcut the gradients of the last parameters are finished last.
  bool calls_hooks() const override { return shortcut_ == nullptr; }
  void prefix_labels(const std::string& prefix) override;
  bool can_be_replayed() const override {
    return body_->can_be_replayed() && (shortcut_ == nullptr || shortcut_->can_be_replayed());
  }
  OutputNeed output_need() const override { return relu_ ? OutputNeed::sign : OutputNeed::nothing; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;
  void forward_empty(const EmptyCall& call) const override;
  void backward_empty(const EmptyCall& call) const override;

 private:
  std::unique_ptr<Sequential> body_;
  std::unique_ptr<Sequential> shortcut_;
  bool relu_;
  size_t body_parameters_, body_buffers_;
};

}  // namespace vitrine
