// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/epilogues.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"

namespace vitrine::cuda {

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  const Matmul product{.m = c.shape[0],
                       .n = c.shape[1],
                       .k = a.shape[transpose_a ? 0 : 1],
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b,
                       .dtype = a.dtype,
                       .c_dtype = c.dtype,
                       .accumulate = mode == GradMode::accumulate};
  matmul(ctx, product, a.data, b.data, c.data, nullptr, ctx.workspace());
}

void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  const Matmul product{.m = y.shape[0],
                       .n = y.shape[1],
                       .k = x.shape[1],
                       .transpose_b = true,
                       .dtype = x.dtype,
                       .c_dtype = y.dtype,
                       .epilogue = bias ? Epilogue::bias : Epilogue::none};
  matmul(ctx, product, x.data, w.data, y.data, bias.data, ctx.workspace());
  if (relu) add_bias_relu(ctx, {}, relu, y);
}

void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x) {
  const Matmul product{
      .m = grad_x.shape[0], .n = grad_x.shape[1], .k = grad_y.shape[1], .dtype = grad_y.dtype, .c_dtype = grad_x.dtype};
  matmul(ctx, product, grad_y.data, w.data, grad_x.data, nullptr, ctx.workspace());
}

void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                            GradMode mode) {
  const bool accumulate = mode == GradMode::accumulate;
  const bool sums = grad_bias && !accumulate;  // cuBLASLt overwrites the gradient of the bias
  const Matmul product{.m = grad_w.shape[0],
                       .n = grad_w.shape[1],
                       .k = x.shape[0],
                       .transpose_a = true,
                       .dtype = x.dtype,
                       .c_dtype = grad_w.dtype,
                       .accumulate = accumulate,
                       .epilogue = sums ? Epilogue::row_sums : Epilogue::none};
  matmul(ctx, product, grad_y.data, x.data, grad_w.data, sums ? grad_bias.data : nullptr, ctx.workspace());
  if (grad_bias && !sums) column_sum(ctx, grad_y, grad_bias, mode);
}

}  // namespace vitrine::cuda
