// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/conv2d_pass.h"
#include "kernels/implementations.h"

/// oneDNN's matrix products and convolutions, of the dtypes that it computes with. Primitives are made once for each shape and kept in ctx.plans();
/// packed weights and scratch lie in `workspace`. A function returns false, having done nothing, when oneDNN has no fast implementation of the
/// shape or the workspace is too small for it.
namespace vitrine::cpu::onednn {

/// f32; bf16 on CPUs with instructions for it (AVX-512 BF16), where gradients of weights and biases are f32.
bool computes(DType dtype);

/// c (m, n) = a (m, k) b (k, n); rows of c lie c_stride elements apart.
struct Product {
  int64_t m = 0, n = 0, k = 0, c_stride = 0;
  DType dtype = DType::f32, c_dtype = DType::f32;
  bool transpose_a = false, transpose_b = false, bias = false, relu = false, accumulate = false;
};

/// Whether oneDNN has a fast implementation of the product that fits into the workspace.
bool takes(ExecContext& ctx, const View& workspace, const Product& product);

/// Below AVX-512, oneDNN's product of two untransposed matrices runs at 0.5 to 1 times the speed of Eigen's at the shapes of linear layers; gemm()
/// then takes none.
bool eigen_is_faster(bool transpose_a, bool transpose_b);

/// Rows of c, which may be f32 with a and b bf16, lie c_stride elements apart.
bool gemm(ExecContext& ctx, const View& workspace, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, int64_t c_stride,
          GradMode mode);
bool linear_forward(ExecContext& ctx, const View& workspace, ConstView x, ConstView w, ConstView bias, bool relu, View y);

bool conv2d_forward(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y);
bool conv2d_backward_data(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x);
bool conv2d_backward_weight(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            View grad_bias, GradMode mode);

/// The workspace that one of the three needs; -1 where there is no fast implementation.
int64_t conv2d_bytes(ExecContext& ctx, Conv2dPass pass, const Conv2dConfig& config, const Shape& x, const Shape& w, bool with_bias, DType dtype);

}  // namespace vitrine::cpu::onednn
