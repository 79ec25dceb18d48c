// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/image.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "runtime/shape.h"

/// Results of the light kernels in double precision, in the most literal form, without code of the kernels.
namespace vitrine::reference {

using Values = std::vector<double>;

struct MaxPool {
  Values y;
  std::vector<int> indices;
};
MaxPool max_pool2d(const Pool2dConfig& config, const Shape& x_shape, const std::vector<float>& x);
/// Adds each gradient at the position in `indices`.
Values max_pool2d_backward(const Pool2dConfig& config, const Shape& x_shape, const std::vector<float>& grad_y,
                           const std::vector<uint8_t>& indices);

Values avg_pool2d_backward(const Pool2dConfig& config, const Shape& x_shape, const std::vector<float>& grad_y);
Values adaptive_avg_pool2d_backward(const Shape& x_shape, const Shape& y_shape, const std::vector<float>& grad_y);

struct CrossEntropy {
  double loss_sum = 0.0;
  int64_t valid = 0;
  int64_t correct = 0;
  int64_t top5 = 0;
  Values grad;
};
CrossEntropy cross_entropy(const CrossEntropyConfig& config, int64_t classes, const std::vector<float>& logits,
                           const std::vector<int32_t>& targets);

/// The optimizer of one parameter, step by step.
struct Optimizer {
  double p = 0.0, first = 0.0, second = 0.0;
  int64_t step = 0;
  void sgd(const SgdConfig& config, double grad);
  void adam(const AdamConfig& config, double grad);
};

/// One image (h, w, C) to (H, W, C).
Values resize_normalize(const Normalization& normalization, const Shape& source, const std::vector<uint8_t>& pixels,
                        const Shape& target);

}  // namespace vitrine::reference
