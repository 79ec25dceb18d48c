// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/layers/flatten.h"
#include "nn/sequential.h"
#include "runtime/error.h"

namespace vitrine {

/// Adds the parts of a model one by one and tracks the shape that the next one gets.
class ModelBuilder {
 public:
  explicit ModelBuilder(const Shape& input) : shape_(input) {}

  /// The input of the next part.
  const Shape& shape() const { return shape_; }
  bool empty() const { return parts_.empty(); }
  /// throws ShapeError, which begins with the name, when the layer does not take such an input
  void add(std::string name, std::unique_ptr<Layer> layer) {
    try {
      shape_ = layer->output_shape(shape_);
    } catch (const ShapeError&) {
      rethrow_with_prefix(std::current_exception(), name + ": ");
    }
    parts_.push_back({std::move(name), std::move(layer)});
  }
  void add_flatten(std::string name) {
    if (shape_.rank() == 4) {
      flattened_ = {CheckpointLayout::Kind::linear_chw, shape_[1], shape_[2], shape_[3]};
      flatten_ = parts_.size();
    }
    add(std::move(name), std::make_unique<Flatten>());
  }
  /// The layout that files give to the weight of the first Linear after a flatten. Other layers get none.
  CheckpointLayout take_flattened() { return std::exchange(flattened_, {}); }
  /// Elements of images that reach no Linear leave the model in PyTorch's order.
  std::unique_ptr<Sequential> build() {
    if (take_flattened().kind == CheckpointLayout::Kind::linear_chw)
      parts_[flatten_].layer = std::make_unique<Flatten>(true);
    return std::make_unique<Sequential>(std::move(parts_));
  }

 private:
  Shape shape_;
  CheckpointLayout flattened_;  // until a Linear takes it
  size_t flatten_ = 0;          // the part that set it
  std::vector<Sequential::Part> parts_;
};

}  // namespace vitrine
