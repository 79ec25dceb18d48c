// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reference.h"

#include <cmath>

#include <gtest/gtest.h>

namespace vitrine::test {
namespace {

double at(std::span<const float> values, int64_t index) {
  return static_cast<double>(values[static_cast<size_t>(index)]);
}

void add_all(Reference& sum, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) sum.add(static_cast<int64_t>(i), static_cast<double>(values[i]));
}

// Calls visit(x_index, w_index, y_index) for every product of the convolution.
template <class Visit>
void for_each_product(const ConvolutionGeometry& g, const Visit& visit) {
  for (int64_t n = 0; n < g.y.numel() / g.y[3]; ++n) {
    const int64_t image = n / (g.y[1] * g.y[2]);
    const int64_t p = n / g.y[2] % g.y[1];
    const int64_t q = n % g.y[2];
    for (int64_t r = 0; r < g.w[1]; ++r) {
      for (int64_t s = 0; s < g.w[2]; ++s) {
        const int64_t h = p * g.stride + r - g.pad;
        const int64_t w = q * g.stride + s - g.pad;
        if (h < 0 || h >= g.x[1] || w < 0 || w >= g.x[2]) continue;
        for (int64_t k = 0; k < g.w[0]; ++k) {
          for (int64_t c = 0; c < g.w[3]; ++c) {
            visit(((image * g.x[1] + h) * g.x[2] + w) * g.x[3] + c, ((k * g.w[1] + r) * g.w[2] + s) * g.w[3] + c,
                  n * g.w[0] + k);
          }
        }
      }
    }
  }
}

}  // namespace

Reference reference_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, std::span<const float> a,
                         std::span<const float> b, std::span<const float> initial) {
  Reference c(m * n);
  c.terms = k + 1;
  add_all(c, initial);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        c.add(i * n + j, at(a, transpose_a ? l * m + i : i * k + l) * at(b, transpose_b ? j * k + l : l * n + j));
      }
    }
  }
  return c;
}

Reference reference_column_sums(int64_t rows, int64_t columns, std::span<const float> values,
                                std::span<const float> initial) {
  Reference sums(columns);
  sums.terms = rows + 1;
  add_all(sums, initial);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) sums.add(j, at(values, i * columns + j));
  }
  return sums;
}

void add_bias(Reference& y, std::span<const float> bias) {
  for (size_t i = 0; i < y.values.size(); ++i)
    y.add(static_cast<int64_t>(i), static_cast<double>(bias[i % bias.size()]));
  ++y.terms;
}

void apply_relu(Reference& y) {
  for (double& v : y.values) v = v > 0 ? v : 0;
}

Reference reference_conv2d_forward(const ConvolutionGeometry& g, std::span<const float> x, std::span<const float> w) {
  Reference y(g.y.numel());
  y.terms = g.w.numel() / g.w[0];
  for_each_product(g, [&](int64_t xi, int64_t wi, int64_t yi) { y.add(yi, at(x, xi) * at(w, wi)); });
  return y;
}

Reference reference_conv2d_backward_data(const ConvolutionGeometry& g, std::span<const float> grad_y,
                                         std::span<const float> w) {
  Reference grad_x(g.x.numel());
  grad_x.terms = g.w.numel() / g.w[3];
  for_each_product(g, [&](int64_t xi, int64_t wi, int64_t yi) { grad_x.add(xi, at(grad_y, yi) * at(w, wi)); });
  return grad_x;
}

Reference reference_conv2d_backward_weight(const ConvolutionGeometry& g, std::span<const float> x,
                                           std::span<const float> grad_y, std::span<const float> initial) {
  Reference grad_w(g.w.numel());
  grad_w.terms = g.y.numel() / g.y[3] + 1;
  add_all(grad_w, initial);
  for_each_product(g, [&](int64_t xi, int64_t wi, int64_t yi) { grad_w.add(wi, at(grad_y, yi) * at(x, xi)); });
  return grad_w;
}

void expect_rounded(std::span<const float> actual, const Reference& expected, const std::string& what,
                    double unit_roundoff, double half_smallest) {
  ASSERT_EQ(actual.size(), expected.values.size()) << what;
  const double bound = 4 * std::sqrt(static_cast<double>(expected.terms) + 4) * 0x1p-24;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - expected.values[i]);
    const double in_f32 = bound * expected.magnitudes[i] + 1e-30;
    const double limit = in_f32 + unit_roundoff * (std::abs(expected.values[i]) + in_f32) + half_smallest;
    if (difference <= limit) continue;
    FAIL() << what << ": element " << i << " of " << actual.size() << " is " << actual[i] << ", expected "
           << expected.values[i] << " (difference " << difference << ", allowed " << limit << ")";
  }
}

}  // namespace vitrine::test
