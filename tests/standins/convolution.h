// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include <library_types.h>

/// Arithmetic of the stand-in for cuDNN.
namespace vitrine::standins {

/// A convolution, or its gradient by x or by w, of tensors x (N, H, W, C), w (K, R, S, C) and y (N, P, Q, K). Types:
/// CUDA_R_32F, 16F or 16BF.
struct Convolution {
  enum class Pass : uint8_t { forward, backward_data, backward_weight };
  Pass pass = Pass::forward;
  std::array<int64_t, 4> x_sizes{}, w_sizes{}, y_sizes{};
  std::array<int64_t, 2> strides{1, 1}, pads{};
  cudaDataType_t x_type = CUDA_R_32F, w_type = CUDA_R_32F, y_type = CUDA_R_32F;
  float alpha = 1, beta = 0;  // result = alpha * sums + beta * its content
  bool bias = false, relu = false, relu_keeps_nan = false;
  bool tf32 = false;
  int64_t more_parts = 0;  // in which the terms of each sum are added, beyond those for the sizes
  // The data of the result is written.
  const void *x = nullptr, *w = nullptr, *y = nullptr, *bias_data = nullptr;  // the bias has y's type

  int64_t x_bytes() const;
  int64_t w_bytes() const;
  int64_t y_bytes() const;
  int64_t bias_bytes() const;
};

/// Sums in f32 and rounds the results once, after the bias and ReLU.
void convolve(const Convolution& convolution);

}  // namespace vitrine::standins
