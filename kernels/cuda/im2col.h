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

/// columns ((end - begin) * Q, R * S * C) of x's dtype: the window of every output pixel of the output lines [begin, end), counted over all images;
/// zeros where it lies in the padding. x (N, H, W, C) f32, f16 or bf16.
void im2col(cudaStream_t stream, const ConvSizes& sizes, ConstView x, int64_t begin, int64_t end, void* columns);

/// Adds to grad_x (N, H, W, C) f32 what the columns (f32) of output lines [begin, end) hold for it. Each element is gathered by one thread, in a
/// fixed order.
void add_col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end, View grad_x);

/// The image lines [first_row, end_row) of grad_x (N, H, W, C) f16 or bf16, counted over all images, as the columns (f32) of output lines
/// [begin, end), which must hold all windows that reach them, say: gathered likewise in f32 and rounded once.
void col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end, int64_t first_row, int64_t end_row,
            View grad_x);

}  // namespace vitrine::cuda
