// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/conv2d.h"

/// Convolution by im2col and cuBLASLt, used when cuDNN is not built in or has no plan. The columns are stored in the
/// arena; if it does not hold all of them, the work is cut into ranges of output lines, in a fixed order.   throws
/// OutOfMemory with the bytes needed when not one line fits
namespace vitrine::cuda {

void im2col_conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias,
                           View y);
void im2col_conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w,
                                 View grad_x);
void im2col_conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y,
                                   View grad_w, GradMode mode);

/// The sizes of a convolution, for kernels.
struct ConvSizes {
  int N, H, W, C, K, R, S, P, Q, stride, pad;
  ConvSizes(const Conv2dConfig& config, const Shape& x, const Shape& w, const Shape& y);
  int64_t column_length() const { return int64_t{1} * R * S * C; }
  int64_t output_lines() const { return int64_t{1} * N * P; }
};

/// columns ((end - begin) * Q, R * S * C) of x's dtype: the window of every output pixel of the output lines [begin,
/// end), counted over all images; zeros in the padding. x (N, H, W, C) f32, f16 or bf16.
void im2col(cudaStream_t stream, const ConvSizes& sizes, ConstView x, int64_t begin, int64_t end, void* columns);

/// Adds the columns (f32) of output lines [begin, end) to grad_x (N, H, W, C) f32. One thread gathers each element, in
/// a fixed order.
void add_col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end,
                View grad_x);

/// Computes the image lines [first_row, end_row) of grad_x (N, H, W, C) f16 or bf16, counted over all images, from the
/// columns (f32) of output lines [begin, end): gathered in f32 and rounded once.   requires  [begin, end) has all
/// windows that reach these image lines
void col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end,
            int64_t first_row, int64_t end_row, View grad_x);

}  // namespace vitrine::cuda
