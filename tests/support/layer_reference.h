// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/batch_norm.h"
#include "kernels/conv2d.h"
#include "kernels/dropout.h"
#include "kernels/pool2d.h"
#include "runtime/shape.h"

/// Forward passes of layers in double precision, one loop nest each; gradients are checked against their differences.
namespace vitrine::test {

struct DoubleTensor {
  Shape shape;
  std::vector<double> values;
};

DoubleTensor reference_linear(const DoubleTensor& x, const DoubleTensor& w, const DoubleTensor* bias);
DoubleTensor reference_conv2d(const Conv2dConfig& config, const DoubleTensor& x, const DoubleTensor& w,
                              const DoubleTensor* bias);
DoubleTensor reference_relu(DoubleTensor x);
DoubleTensor reference_max_pool2d(const Pool2dConfig& config, const DoubleTensor& x);
DoubleTensor reference_avg_pool2d(const Pool2dConfig& config, const DoubleTensor& x);
DoubleTensor reference_adaptive_avg_pool2d(int64_t height, int64_t width, const DoubleTensor& x);
DoubleTensor reference_dropout(const DropoutConfig& config, DoubleTensor x);
/// In training: with the mean and biased variance of x.
DoubleTensor reference_batch_norm(const BatchNormConfig& config, DoubleTensor x, const DoubleTensor& weight,
                                  const DoubleTensor& bias);
DoubleTensor reference_gelu(DoubleTensor x);
DoubleTensor reference_gelu_tanh(DoubleTensor x);
DoubleTensor reference_layer_norm(double eps, DoubleTensor x, const DoubleTensor& weight, const DoubleTensor& bias);
/// x (N, T, 3 * heads * D): queries, keys, values. log_sums, if not null: (N, heads, T).
DoubleTensor reference_attention(int64_t heads, const DoubleTensor& x, DoubleTensor* log_sums = nullptr);
DoubleTensor reference_add(DoubleTensor a, const DoubleTensor& b);

}  // namespace vitrine::test
