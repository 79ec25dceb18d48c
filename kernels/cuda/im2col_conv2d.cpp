// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/im2col_conv2d.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/im2col.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

constexpr int64_t kMostMatmulScratch = int64_t{8} << 20;
constexpr int64_t kAlignment = 256;

/// How the arena is shared, and how the output lines are cut.
struct Ranges {
  int64_t lines_at_once;
  float* columns;
  View scratch;

  Ranges(ExecContext& ctx, const char* operation, const ConvSizes& sizes) {
    const View arena = ctx.workspace();
    const int64_t bytes = arena ? arena.bytes() : 0;
    const int64_t line_bytes = sizes.Q * sizes.column_length() * static_cast<int64_t>(sizeof(float));
    if (line_bytes > bytes) {
      throw OutOfMemory(
          fmt::format("{}: x ({}, {}, {}, {}) with a window of {} x {} needs a workspace of at least {} bytes, but {} bytes are reserved; "
                      "give --workspace",
                      operation, sizes.N, sizes.H, sizes.W, sizes.C, sizes.R, sizes.S, line_bytes, bytes));
    }
    const int64_t for_matmul = std::min({kMostMatmulScratch, bytes / 4, bytes - line_bytes}) / kAlignment * kAlignment;
    scratch = arena.rows(0, for_matmul);
    columns = reinterpret_cast<float*>(arena.as<uint8_t>() + for_matmul);
    lines_at_once = std::min(sizes.output_lines(), (bytes - for_matmul) / line_bytes);
    // Whole images where they fit: their gradients are gathered in one pass.
    if (lines_at_once > sizes.P) lines_at_once = lines_at_once / sizes.P * sizes.P;
  }
};

bool is_matrix_product(const ConvSizes& s) { return s.R == 1 && s.S == 1 && s.stride == 1 && s.pad == 0; }

/// Calls work(begin, end) for consecutive ranges of output lines.
template <class Work>
void for_each_range(const ConvSizes& sizes, int64_t at_once, const Work& work) {
  for (int64_t begin = 0; begin < sizes.output_lines(); begin += at_once) work(begin, std::min(sizes.output_lines(), begin + at_once));
}

}  // namespace

void im2col_conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  const ConvSizes sizes(config, x.shape, w.shape, y.shape);
  const Epilogue epilogue = bias ? (config.relu ? Epilogue::bias_relu : Epilogue::bias) : (config.relu ? Epilogue::relu : Epilogue::none);
  Matmul product{.n = sizes.K, .k = sizes.column_length(), .transpose_b = true, .dtype = y.dtype, .epilogue = epilogue};
  if (is_matrix_product(sizes)) {
    product.m = sizes.output_lines() * sizes.Q;
    return matmul(ctx, product, x.data, w.data, y.data, bias.data, ctx.workspace());
  }
  const Ranges ranges(ctx, "conv2d_forward", sizes);
  for_each_range(sizes, ranges.lines_at_once, [&](int64_t begin, int64_t end) {
    im2col(native_stream(ctx), sizes, x.as<float>(), begin, end, ranges.columns);
    product.m = (end - begin) * sizes.Q;
    matmul(ctx, product, ranges.columns, w.data, y.as<float>() + begin * sizes.Q * sizes.K, bias.data, ranges.scratch);
  });
}

void im2col_conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  const ConvSizes sizes(config, grad_x.shape, w.shape, grad_y.shape);
  Matmul product{.n = sizes.column_length(), .k = sizes.K, .dtype = grad_x.dtype};
  if (is_matrix_product(sizes)) {
    product.m = sizes.output_lines() * sizes.Q;
    return matmul(ctx, product, grad_y.data, w.data, grad_x.data, nullptr, ctx.workspace());
  }
  const Ranges ranges(ctx, "conv2d_backward_data", sizes);
  VITRINE_CUDA_CHECK(cudaMemsetAsync(grad_x.data, 0, static_cast<size_t>(grad_x.bytes()), native_stream(ctx)));
  for_each_range(sizes, ranges.lines_at_once, [&](int64_t begin, int64_t end) {
    product.m = (end - begin) * sizes.Q;
    matmul(ctx, product, grad_y.as<float>() + begin * sizes.Q * sizes.K, w.data, ranges.columns, nullptr, ranges.scratch);
    add_col2im(native_stream(ctx), sizes, ranges.columns, begin, end, grad_x.as<float>());
  });
}

void im2col_conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, GradMode mode) {
  const ConvSizes sizes(config, x.shape, grad_w.shape, grad_y.shape);
  Matmul product{.m = sizes.K, .n = sizes.column_length(), .transpose_a = true, .dtype = grad_w.dtype, .accumulate = mode == GradMode::accumulate};
  if (is_matrix_product(sizes)) {
    product.k = sizes.output_lines() * sizes.Q;
    return matmul(ctx, product, grad_y.data, x.data, grad_w.data, nullptr, ctx.workspace());
  }
  const Ranges ranges(ctx, "conv2d_backward_weight", sizes);
  for_each_range(sizes, ranges.lines_at_once, [&](int64_t begin, int64_t end) {
    im2col(native_stream(ctx), sizes, x.as<float>(), begin, end, ranges.columns);
    product.k = (end - begin) * sizes.Q;
    matmul(ctx, product, grad_y.as<float>() + begin * sizes.Q * sizes.K, ranges.columns, grad_w.data, nullptr, ranges.scratch);
    product.accumulate = true;
  });
}

}  // namespace vitrine::cuda
