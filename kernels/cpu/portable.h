// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/conv2d_call.h"

/// Matrix products and convolution without oneDNN: Eigen's single-threaded product on one block per thread of the team,
/// im2col for convolution. Always built and tested; used when oneDNN is not built in or does not support a shape within
/// the workspace. Shapes and team size determine which thread computes what, so all runs give the same bits.
namespace vitrine::cpu::portable {

/// A row-major matrix in memory, or its transpose: element (i, j) is data[i * stride + j], transposed data[j * stride +
/// i].
struct MatrixRef {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

/// c (m, n), rows c_stride apart, = a (m, k) b (k, n) [+ c]; on the calling thread only.
void multiply(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c, int64_t c_stride,
              bool accumulate);

/// y (rows, columns) += bias unless it is null, then ReLU if `relu`.
void add_bias_relu(float* y, int64_t rows, int64_t columns, const float* bias, bool relu);

/// f32 sums (columns) = column sums of values (rows, columns) of any storage type, overwritten or added to. Uses the
/// whole team.
void column_sums(const ConstView& values, float* sums, GradMode mode);

/// Here and below: f32. Rows of c are c_stride elements apart.
void gemm(bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, int64_t c_stride, GradMode mode);

void linear_forward(ConstView x, ConstView w, ConstView bias, bool relu, View y);
void linear_backward_data(ConstView grad_y, ConstView w, View grad_x);
void linear_backward_weight(ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode);

/// Convolution needs workspace for one row of columns (R * S * C floats) and runs on as many threads as it has rows;
/// more rows per thread make it faster. 1 x 1 windows with stride 1 and no padding need none.   throws  OutOfMemory
/// when not one row fits
///   workspace  ctx's, or a part of it
void conv2d(const ExecContext& ctx, const View& workspace, const Conv2dCall& call);
/// Bytes of workspace that a convolution needs, and that it can use.
struct Conv2dBytes {
  int64_t least, most;
};
Conv2dBytes conv2d_bytes(const RecordedConv2d& convolution);
/// throws OutOfMemory as conv2d() does in ctx's workspace, or in a part of it that has `bytes`.
void require_workspace(const ExecContext& ctx, int64_t bytes, const RecordedConv2d& convolution);

}  // namespace vitrine::cpu::portable
