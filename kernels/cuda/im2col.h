// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/conv2d.h"

namespace vitrine::cuda {

/// A convolution's sizes as kernels want them.
struct ConvSizes {
  int N, H, W, C, K, R, S, P, Q, stride, pad;
  ConvSizes(const Conv2dConfig& config, const Shape& x, const Shape& w, const Shape& y);
  int64_t column_length() const { return int64_t{1} * R * S * C; }
  int64_t output_lines() const { return int64_t{1} * N * P; }
};

/// columns ((end - begin) * Q, R * S * C) f32: the window of every output pixel of the output lines [begin, end), counted over all images; zeros
/// where it lies in the padding. x (N, H, W, C) f32.
void im2col(cudaStream_t stream, const ConvSizes& sizes, const float* x, int64_t begin, int64_t end, float* columns);

/// Adds to grad_x (N, H, W, C) f32 what the columns of output lines [begin, end) hold for it. Each element is gathered by one thread, in a fixed
/// order.
void add_col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end, float* grad_x);

}  // namespace vitrine::cuda
