// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/im2col_conv2d.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/epilogues.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"

namespace vitrine::cuda {
namespace {

constexpr int64_t kMostMatmulScratch = int64_t{8} << 20;
constexpr int64_t kAlignment = 256;

/// Division of the arena and of the output lines.
struct Ranges {
  int64_t lines_at_once;
  void* columns;
  View scratch;

  /// dtype: of the columns.   least_lines: number of lines that must fit at once
  Ranges(ExecContext& ctx, const char* operation, const ConvSizes& sizes, DType dtype, int64_t least_lines) {
    const View arena = ctx.workspace();
    const int64_t bytes = arena ? arena.bytes() : 0;
    const int64_t line_bytes = sizes.Q * sizes.column_length() * size_of(dtype);
    const int64_t least_bytes = least_lines * line_bytes;
    if (least_bytes > bytes) {
      const Shape x{sizes.N, sizes.H, sizes.W, sizes.C};
      check::throw_small_workspace(ctx, operation,
                                   fmt::format("x {} with a window of {} x {}", x.str(), sizes.R, sizes.S), least_bytes,
                                   2 * least_bytes);
    }
    const int64_t for_matmul = std::min({kMostMatmulScratch, bytes / 4, bytes - least_bytes}) / kAlignment * kAlignment;
    scratch = arena.rows(0, for_matmul);
    columns = arena.as<uint8_t>() + for_matmul;
    lines_at_once = std::min(sizes.output_lines(), (bytes - for_matmul) / line_bytes);
    // Whole images if they fit: their gradients are gathered in one pass.
    if (lines_at_once > sizes.P) lines_at_once = lines_at_once / sizes.P * sizes.P;
  }
};

bool is_matrix_product(const ConvSizes& s) { return s.R == 1 && s.S == 1 && s.stride == 1 && s.pad == 0; }

/// Calls work(begin, end) for consecutive ranges of output lines.
template <class Work>
void for_each_range(const ConvSizes& sizes, int64_t at_once, const Work& work) {
  for (int64_t begin = 0; begin < sizes.output_lines(); begin += at_once)
    work(begin, std::min(sizes.output_lines(), begin + at_once));
}

/// The most output lines whose windows contain one image line.
int64_t lines_of_a_row(const ConvSizes& s) { return std::min(s.P, (s.R + s.stride - 1) / s.stride); }

/// Calls work(first_row, end_row, begin, end) for consecutive ranges of image lines, counted over all images, with the
/// output lines whose windows reach them: whole images if their lines fit, otherwise parts of one; neighboring ranges
/// may share output lines.
/// requires  at_once >= lines_of_a_row()
template <class Work>
void for_each_row_range(const ConvSizes& s, int64_t at_once, const Work& work) {
  if (at_once >= s.P) {
    const int64_t images = at_once / s.P;
    for (int64_t n = 0; n < s.N; n += images) {
      const int64_t end = std::min<int64_t>(s.N, n + images);
      work(n * s.H, end * s.H, n * s.P, end * s.P);
    }
    return;
  }
  const auto first_line = [&](int64_t h) {
    return std::clamp<int64_t>((h + s.pad - s.R + s.stride) / s.stride, 0, s.P);
  };
  const auto end_line = [&](int64_t h) { return std::min<int64_t>(s.P, (h + s.pad) / s.stride + 1); };
  for (int64_t n = 0; n < s.N; ++n) {
    for (int64_t h = 0, end = 0; h < s.H; h = end) {
      const int64_t first = first_line(h);
      for (end = h + 1; end < s.H && end_line(end) - first <= at_once;) ++end;
      work(n * s.H + h, n * s.H + end, n * s.P + first, n * s.P + std::max(first, end_line(end - 1)));
    }
  }
}

/// The address of the element.
void* at(const View& v, int64_t element) { return v.as<char>() + element * size_of(v.dtype); }
const void* at(const ConstView& v, int64_t element) { return v.as<char>() + element * size_of(v.dtype); }

}  // namespace

void im2col_conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias,
                           View y) {
  const ConvSizes sizes(config, x.shape, w.shape, y.shape);
  Matmul product{.n = sizes.K,
                 .k = sizes.column_length(),
                 .transpose_b = true,
                 .dtype = x.dtype,
                 .c_dtype = y.dtype,
                 .epilogue = bias ? Epilogue::bias : Epilogue::none};
  const int64_t rows = sizes.output_lines() * sizes.Q;
  if (is_matrix_product(sizes)) {
    product.m = rows;
    matmul(ctx, product, x.data, w.data, y.data, bias.data, ctx.workspace());
  } else {
    const Ranges ranges(ctx, "conv2d_forward", sizes, x.dtype, 1);
    for_each_range(sizes, ranges.lines_at_once, [&](int64_t begin, int64_t end) {
      im2col(native_stream(ctx), sizes, x, begin, end, ranges.columns);
      product.m = (end - begin) * sizes.Q;
      matmul(ctx, product, ranges.columns, w.data, at(y, begin * sizes.Q * sizes.K), bias.data, ranges.scratch);
    });
  }
  if (config.relu) add_bias_relu(ctx, {}, true, y.reshape({rows, sizes.K}));
}

void im2col_conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w,
                                 View grad_x) {
  const ConvSizes sizes(config, grad_x.shape, w.shape, grad_y.shape);
  Matmul product{.n = sizes.column_length(), .k = sizes.K, .dtype = grad_y.dtype, .c_dtype = grad_x.dtype};
  if (is_matrix_product(sizes)) {
    product.m = sizes.output_lines() * sizes.Q;
    return matmul(ctx, product, grad_y.data, w.data, grad_x.data, nullptr, ctx.workspace());
  }
  product.c_dtype = DType::f32;
  const bool in_f32 = grad_x.dtype == DType::f32;
  const Ranges ranges(ctx, "conv2d_backward_data", sizes, DType::f32, in_f32 ? 1 : lines_of_a_row(sizes));
  auto* const columns = static_cast<float*>(ranges.columns);
  const auto multiply = [&](int64_t begin, int64_t end) {
    product.m = (end - begin) * sizes.Q;
    if (product.m > 0)
      matmul(ctx, product, at(grad_y, begin * sizes.Q * sizes.K), w.data, columns, nullptr, ranges.scratch);
  };
  if (in_f32) {
    VITRINE_CUDA_CHECK(cudaMemsetAsync(grad_x.data, 0, static_cast<size_t>(grad_x.bytes()), native_stream(ctx)));
    for_each_range(sizes, ranges.lines_at_once, [&](int64_t begin, int64_t end) {
      multiply(begin, end);
      add_col2im(native_stream(ctx), sizes, columns, begin, end, grad_x);
    });
    return;
  }
  // An image line that two ranges add to would be rounded twice.
  for_each_row_range(sizes, ranges.lines_at_once, [&](int64_t first_row, int64_t end_row, int64_t begin, int64_t end) {
    multiply(begin, end);
    col2im(native_stream(ctx), sizes, columns, begin, end, first_row, end_row, grad_x);
  });
}

void im2col_conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y,
                                   View grad_w, GradMode mode) {
  const ConvSizes sizes(config, x.shape, grad_w.shape, grad_y.shape);
  Matmul product{.m = sizes.K,
                 .n = sizes.column_length(),
                 .transpose_a = true,
                 .dtype = x.dtype,
                 .c_dtype = grad_w.dtype,
                 .accumulate = mode == GradMode::accumulate};
  if (is_matrix_product(sizes)) {
    product.k = sizes.output_lines() * sizes.Q;
    return matmul(ctx, product, grad_y.data, x.data, grad_w.data, nullptr, ctx.workspace());
  }
  const Ranges ranges(ctx, "conv2d_backward_weight", sizes, x.dtype, 1);
  for_each_range(sizes, ranges.lines_at_once, [&](int64_t begin, int64_t end) {
    im2col(native_stream(ctx), sizes, x, begin, end, ranges.columns);
    product.k = (end - begin) * sizes.Q;
    matmul(ctx, product, at(grad_y, begin * sizes.Q * sizes.K), ranges.columns, grad_w.data, nullptr, ranges.scratch);
    product.accumulate = true;
  });
}

}  // namespace vitrine::cuda
