// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// Causal self-attention of several heads: y (N, T, C) from x (N, T, 3 C), which a Linear has made: queries, keys and
/// values, each of all heads. As torch's scaled_dot_product_attention with is_causal. Keeps x, y and (N, heads, T) f32.
/// source  Vaswani et al. 2017, Dao et al. 2022
class Attention final : public Layer {
 public:
  explicit Attention(int64_t heads);

  std::string describe() const override;
  Shape output_shape(const Shape& x) const override;
  Work forward_work(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::values; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  Tensor allocate_rows(ExecContext& ctx, const Shape& x, const char* name) const;

  int64_t heads_;
};

}  // namespace vitrine
