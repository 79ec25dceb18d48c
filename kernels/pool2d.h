// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

struct Pool2dConfig {
  int64_t window = 2;
  int64_t stride = 2;
  int64_t pad = 0;  // at most window / 2
};

/// Shape (N, P, Q, C) of y for x (N, H, W, C);  P = floor((H + 2*pad - window) / stride) + 1, Q likewise.   throws
/// ShapeError
Shape pool2d_output_shape(const Pool2dConfig& config, const Shape& x);

/// An index without a position: a merged ReLU has cut off the maximum.
inline constexpr uint8_t kCutOff = 255;
/// Largest window of a max pool with a merged ReLU and indices: its positions leave kCutOff free.
inline constexpr int64_t kMostReluWindow = 15;

/// Maximum over windows. Padding never wins, the first of equal elements (row-major) wins, and NaN wins over all
/// others, as in PyTorch.
///   x (N, H, W, C)   y (N, P, Q, C)   indices (N, P, Q, C) u8 or empty: position r * window + s of the maximum in its
///     window
///   relu  y is relu_forward() of the maximum. Where y is not above 0, its index is kCutOff, so that
///         max_pool2d_backward() computes the gradient of both. The bits are the same as with separate operations.
/// For every pool:
/// requires  x, y and their gradients are all f32, all f16 or all bf16; none overlaps another
/// ensures   computed in f32, rounded once; the same bits in every run
/// throws    ShapeError, DtypeError, DeviceError; UnsupportedError for max pools with window > 16, with ReLU and
///           indices > 15
void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices,
                        bool relu = false);

/// Adds each element of grad_y to the position of its maximum in grad_x (N, H, W, C), which is overwritten; those with
/// index kCutOff to none.
///   sums (C) f32, overwritten or added to, or empty: also the sums of grad_x over N, H and W, in the same pass where
///     its elements can be read in packs of 16 bytes. They are the gradient of the bias of a convolution before the
///     pool. Of the rounded elements, in f32.
/// workspace  with sums on CUDA, partial sums of strips of rows: more make it faster; none is needed
void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x,
                         View sums = {}, GradMode mode = GradMode::overwrite);

/// Mean over windows, padding included (PyTorch's default, count_include_pad).
void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y);
void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x);

/// Mean over the windows [floor(i*H/P), ceil((i+1)*H/P)) that map x (N, H, W, C) to y (N, P, Q, C), as in PyTorch.
void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y);
void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x);

}  // namespace vitrine
