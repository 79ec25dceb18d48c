// SPDX-License-Identifier: Apache-2.0
// Each pass is one product with the patches of a tensor. Compiled like arithmetic.cpp.
#include "tests/standins/convolution.h"

#include <vector>

#include "tests/standins/arithmetic.h"

namespace vitrine::standins {
namespace {

int64_t count_of(const std::array<int64_t, 4>& sizes) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }

/// A row for each output position (n, p, q): the window of x there, (r, s, c).
std::vector<float> patches_of_x(const Convolution& c) {
  const auto [N, H, W, C] = c.x_sizes;
  const auto [K, R, S, unused] = c.w_sizes;
  const int64_t P = c.y_sizes[1], Q = c.y_sizes[2];
  std::vector<float> patches(static_cast<size_t>(N * P * Q * R * S * C));
  float* out = patches.data();
  for (int64_t row = 0; row < N * P * Q; ++row) {
    const int64_t n = row / (P * Q), p = row / Q % P, q = row % Q;
    for (int64_t window = 0; window < R * S; ++window, out += C) {
      const int64_t h = p * c.strides[0] - c.pads[0] + window / S, w = q * c.strides[1] - c.pads[1] + window % S;
      if (h < 0 || h >= H || w < 0 || w >= W) continue;
      for (int64_t i = 0; i < C; ++i) out[i] = load_element(c.x, c.x_type, ((n * H + h) * W + w) * C + i);
    }
  }
  return patches;
}

/// A row for each image position (n, h, w): what of y its value reaches, (r, s, k).
std::vector<float> patches_of_y(const Convolution& c) {
  const auto [N, H, W, C] = c.x_sizes;
  const auto [K, R, S, unused] = c.w_sizes;
  const int64_t P = c.y_sizes[1], Q = c.y_sizes[2];
  std::vector<float> patches(static_cast<size_t>(N * H * W * R * S * K));
  float* out = patches.data();
  for (int64_t row = 0; row < N * H * W; ++row) {
    const int64_t n = row / (H * W), h = row / W % H, w = row % W;
    for (int64_t window = 0; window < R * S; ++window, out += K) {
      const int64_t down = h + c.pads[0] - window / S, right = w + c.pads[1] - window % S;
      if (down < 0 || right < 0 || down % c.strides[0] != 0 || right % c.strides[1] != 0) continue;
      const int64_t p = down / c.strides[0], q = right / c.strides[1];
      if (p >= P || q >= Q) continue;
      for (int64_t i = 0; i < K; ++i) out[i] = load_element(c.y, c.y_type, ((n * P + p) * Q + q) * K + i);
    }
  }
  return patches;
}

/// (r, s, k, c).
std::vector<float> turned_weights(const Convolution& c) {
  const auto [K, R, S, C] = c.w_sizes;
  std::vector<float> turned(static_cast<size_t>(K * R * S * C));
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t window = 0; window < R * S; ++window) {
      for (int64_t i = 0; i < C; ++i) {
        turned[static_cast<size_t>((window * K + k) * C + i)] =
            load_element(c.w, c.w_type, (k * R * S + window) * C + i);
      }
    }
  }
  return turned;
}

}  // namespace

int64_t Convolution::x_bytes() const { return count_of(x_sizes) * element_bytes(x_type); }
int64_t Convolution::w_bytes() const { return count_of(w_sizes) * element_bytes(w_type); }
int64_t Convolution::y_bytes() const { return count_of(y_sizes) * element_bytes(y_type); }
int64_t Convolution::bias_bytes() const { return bias ? w_sizes[0] * element_bytes(y_type) : 0; }

void convolve(const Convolution& c) {
  const int64_t K = c.w_sizes[0], C = c.w_sizes[3], window = c.w_sizes[1] * c.w_sizes[2];
  const int64_t positions = c.y_sizes[0] * c.y_sizes[1] * c.y_sizes[2],
                pixels = c.x_sizes[0] * c.x_sizes[1] * c.x_sizes[2];
  Product p;
  std::vector<float> patches, turned;
  switch (c.pass) {
    case Convolution::Pass::forward:
      patches = patches_of_x(c);
      p.a = {c.w, c.w_type, K, window * C, window * C, 1};
      p.b = {patches.data(), CUDA_R_32F, window * C, positions, 1, window * C};
      p.d = {c.y, c.y_type, K, positions, 1, K};
      break;
    case Convolution::Pass::backward_data:
      patches = patches_of_y(c);
      turned = turned_weights(c);
      p.a = {turned.data(), CUDA_R_32F, C, window * K, 1, C};
      p.b = {patches.data(), CUDA_R_32F, window * K, pixels, 1, window * K};
      p.d = {c.x, c.x_type, C, pixels, 1, C};
      break;
    case Convolution::Pass::backward_weight:
      patches = patches_of_x(c);
      p.a = {patches.data(), CUDA_R_32F, window * C, positions, 1, window * C};
      p.b = {c.y, c.y_type, positions, K, K, 1};
      p.d = {c.w, c.w_type, window * C, K, 1, window * C};
  }
  p.c = p.d;
  p.alpha = c.alpha;
  p.beta = c.beta;
  p.bias = c.bias ? c.bias_data : nullptr;
  p.relu = c.relu;
  p.relu_keeps_nan = c.relu_keeps_nan;
  p.tf32 = c.tf32;
  p.more_parts = c.more_parts;
  multiply(p);
}

}  // namespace vitrine::standins
