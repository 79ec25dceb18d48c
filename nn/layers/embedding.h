// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/nn/layer.h>

namespace vitrine {

/// y (N, ..., C) = the rows of the weight that x (N, ...) i32 names: torch.nn.Embedding. Parameter: weight (rows, C).
/// The first layer of a model: x has no gradient. Keeps x.
class Embedding final : public Layer {
 public:
  /// init  of the weight; torch.nn.Embedding's is normal with deviation 1
  Embedding(int64_t rows, int64_t features, Init init = {Init::Kind::normal, 1.0F});

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  DType input_dtype(DType /*activations*/) const override { return DType::i32; }
  Shape output_shape(const Shape& x) const override;
  Work forward_work(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  int64_t rows_, features_;
  Init init_;
};

/// y (N, T, C) = x + the first T rows of the weight: learned positions. Parameter: weight (positions, C). Keeps
/// nothing.
class Positions final : public Layer {
 public:
  Positions(int64_t positions, int64_t features, Init init = {Init::Kind::normal, 1.0F});

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  Shape output_shape(const Shape& x) const override;
  Work forward_work(const Shape& x) const override;
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return OutputNeed::nothing; }
  bool backward_in_place() const override { return true; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;

 private:
  int64_t positions_, features_;
  Init init_;
};

}  // namespace vitrine
