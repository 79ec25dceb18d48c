// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/shape.h"

/// Matrix products and convolution in double precision, by plain loops over their definitions, and bounds on the error
/// of float results.
namespace vitrine::test {

/// A result and, for each element, the sum of the absolute values of its terms, which scales its rounding error.
struct Reference {
  std::vector<double> values;
  std::vector<double> magnitudes;
  int64_t terms = 0;  // in one sum

  explicit Reference(int64_t count = 0) : values(static_cast<size_t>(count)), magnitudes(static_cast<size_t>(count)) {}
  void add(int64_t index, double term) {
    values[static_cast<size_t>(index)] += term;
    magnitudes[static_cast<size_t>(index)] += term < 0 ? -term : term;
  }
};

/// c (m, n) = op(a) op(b) + initial; an empty span adds nothing.
Reference reference_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, std::span<const float> a,
                         std::span<const float> b, std::span<const float> initial = {});
/// Sums over the rows of (rows, columns), + initial.
Reference reference_column_sums(int64_t rows, int64_t columns, std::span<const float> values,
                                std::span<const float> initial = {});
/// Adds the bias to every row of (rows, bias.size()).
void add_bias(Reference& y, std::span<const float> bias);
void apply_relu(Reference& y);

/// x (N, H, W, C), w (K, R, S, C), y (N, P, Q, K).
struct ConvolutionGeometry {
  Shape x, w, y;
  int64_t stride = 1, pad = 0;
};
Reference reference_conv2d_forward(const ConvolutionGeometry& g, std::span<const float> x, std::span<const float> w);
Reference reference_conv2d_backward_data(const ConvolutionGeometry& g, std::span<const float> grad_y,
                                         std::span<const float> w);
Reference reference_conv2d_backward_weight(const ConvolutionGeometry& g, std::span<const float> x,
                                           std::span<const float> grad_y, std::span<const float> initial = {});

/// Fails the test and names the element unless each is within 4 sqrt(terms + 4) u times its magnitude of the reference,
/// u = 2^-24: rounding errors of a sum grow like a random walk. A result that is also rounded to f16 or bf16 may differ
/// by another `unit_roundoff` times its value, or `half_smallest`.
void expect_rounded(std::span<const float> actual, const Reference& expected, const std::string& what,
                    double unit_roundoff = 0, double half_smallest = 0);

}  // namespace vitrine::test
