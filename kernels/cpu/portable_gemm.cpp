// SPDX-License-Identifier: Apache-2.0

#include <Eigen/Core>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/storage.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu::portable {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using ConstMap = Eigen::Map<const RowMajor, Eigen::Unaligned, Stride>;
using Map = Eigen::Map<RowMajor, Eigen::Unaligned, Stride>;

constexpr int64_t kPortableGemmGrain = 16;  // rows or columns of c; a multiple of Eigen's register block

template <class A, class B>
void assign(Map& c, const A& a, const B& b, bool accumulate) {
  if (accumulate) {
    c.noalias() += a * b;
  } else {
    c.noalias() = a * b;
  }
}

MatrixRef rows_from(const MatrixRef& m, int64_t row) {
  return {m.data + (m.transposed ? row : row * m.stride), m.stride, m.transposed};
}
MatrixRef columns_from(const MatrixRef& m, int64_t column) {
  return {m.data + (m.transposed ? column * m.stride : column), m.stride, m.transposed};
}

// Divides the larger of m and n among the team. Calls epilogue(i0, i1, j0, j1) on every complete block of c.
template <class Epilogue>
void multiply_on_team(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c,
                      int64_t c_stride, bool accumulate, const Epilogue& epilogue) {
  if (m >= n) {
    parallel_for(m, kPortableGemmGrain, [&](int64_t begin, int64_t end) {
      multiply(end - begin, n, k, rows_from(a, begin), b, c + begin * c_stride, c_stride, accumulate);
      epilogue(begin, end, 0, n);
    });
    return;
  }
  parallel_for(n, kPortableGemmGrain, [&](int64_t begin, int64_t end) {
    multiply(m, end - begin, k, a, columns_from(b, begin), c + begin, c_stride, accumulate);
    epilogue(0, m, begin, end);
  });
}

}  // namespace

void multiply(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c, int64_t c_stride,
              bool accumulate) {
  const ConstMap a_map(a.data, a.transposed ? k : m, a.transposed ? m : k, Stride(a.stride));
  const ConstMap b_map(b.data, b.transposed ? n : k, b.transposed ? k : n, Stride(b.stride));
  Map c_map(c, m, n, Stride(c_stride));
  if (a.transposed && b.transposed) {
    assign(c_map, a_map.transpose(), b_map.transpose(), accumulate);
  } else if (a.transposed) {
    assign(c_map, a_map.transpose(), b_map, accumulate);
  } else if (b.transposed) {
    assign(c_map, a_map, b_map.transpose(), accumulate);
  } else {
    assign(c_map, a_map, b_map, accumulate);
  }
}

void add_bias_relu(float* y, int64_t rows, int64_t columns, const float* bias, bool relu) {
  if (bias == nullptr && !relu) return;
  for (int64_t i = 0; i < rows; ++i) {
    float* row = y + i * columns;
    if (bias != nullptr) {
      for (int64_t j = 0; j < columns; ++j) row[j] += bias[j];
    }
    if (relu) {
      for (int64_t j = 0; j < columns; ++j) row[j] = row[j] < 0.0F ? 0.0F : row[j];
    }
  }
}

void column_sums(const ConstView& values, float* sums, GradMode mode) {
  const int64_t columns = values.shape[values.shape.rank() - 1];
  with_storage(values.dtype, [&]<class T>(T) {
    const T* const data = values.as<T>();
    sum_columns(values.numel() / columns, columns, sums, mode,
                [=](int64_t row, int64_t column, auto& value) { load(data + row * columns + column, value); });
  });
}

void gemm(bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, int64_t c_stride, GradMode mode) {
  const int64_t k = a.shape[transpose_a ? 0 : 1];
  multiply_on_team(c.shape[0], c.shape[1], k, {a.as<float>(), a.shape[1], transpose_a},
                   {b.as<float>(), b.shape[1], transpose_b}, c.as<float>(), c_stride, mode == GradMode::accumulate,
                   [](int64_t, int64_t, int64_t, int64_t) {});
}

void linear_forward(ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  const int64_t in = x.shape[1];
  const int64_t out = y.shape[1];
  multiply_on_team(y.shape[0], out, in, {x.as<float>(), in, false}, {w.as<float>(), in, true}, y.as<float>(), out,
                   false, [&](int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
                     for (int64_t i = i0; i < i1; ++i) {
                       add_bias_relu(y.as<float>() + i * out + j0, 1, j1 - j0, bias ? bias.as<float>() + j0 : nullptr,
                                     relu);
                     }
                   });
}

void linear_backward_data(ConstView grad_y, ConstView w, View grad_x) {
  portable::gemm(false, false, grad_y, w, grad_x, grad_x.shape[1], GradMode::overwrite);
}

void linear_backward_weight(ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  portable::gemm(true, false, grad_y, x, grad_w, grad_w.shape[1], mode);
  if (grad_bias) column_sums(grad_y, grad_bias.as<float>(), mode);
}

}  // namespace vitrine::cpu::portable
