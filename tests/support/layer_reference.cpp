// SPDX-License-Identifier: Apache-2.0
#include "tests/support/layer_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/philox.h"

namespace vitrine::test {
namespace {

DoubleTensor zeros(const Shape& shape) { return {shape, std::vector<double>(static_cast<size_t>(shape.numel()))}; }

// Element (n, h, w, c) of an image batch, or (k, r, s, c) of a filter.
size_t at(const Shape& s, int64_t n, int64_t h, int64_t w, int64_t c) {
  return static_cast<size_t>(((n * s[1] + h) * s[2] + w) * s[3] + c);
}

bool inside(const Shape& x, int64_t h, int64_t w) { return h >= 0 && h < x[1] && w >= 0 && w < x[2]; }

// Calls body(n, p, q, c) for every element of an image batch.
template <class Body>
void for_each(const Shape& s, const Body& body) {
  for (int64_t n = 0; n < s[0]; ++n)
    for (int64_t p = 0; p < s[1]; ++p)
      for (int64_t q = 0; q < s[2]; ++q)
        for (int64_t c = 0; c < s[3]; ++c) body(n, p, q, c);
}

// y[n, p, q, c] = fold over the window of x, from start; padding is skipped.
template <class Fold>
DoubleTensor fold_windows(const Pool2dConfig& config, const DoubleTensor& x, double start, const Fold& fold) {
  const int64_t p_size = (x.shape[1] + 2 * config.pad - config.window) / config.stride + 1;
  const int64_t q_size = (x.shape[2] + 2 * config.pad - config.window) / config.stride + 1;
  DoubleTensor y = zeros({x.shape[0], p_size, q_size, x.shape[3]});
  for_each(y.shape, [&](int64_t n, int64_t p, int64_t q, int64_t c) {
    double value = start;
    for (int64_t r = 0; r < config.window; ++r) {
      for (int64_t s = 0; s < config.window; ++s) {
        const int64_t h = p * config.stride - config.pad + r;
        const int64_t w = q * config.stride - config.pad + s;
        if (inside(x.shape, h, w)) value = fold(value, x.values[at(x.shape, n, h, w, c)]);
      }
    }
    y.values[at(y.shape, n, p, q, c)] = value;
  });
  return y;
}

}  // namespace

DoubleTensor reference_linear(const DoubleTensor& x, const DoubleTensor& w, const DoubleTensor* bias) {
  const auto rows = static_cast<size_t>(x.shape[0]);
  const auto out = static_cast<size_t>(w.shape[0]);
  const auto in = static_cast<size_t>(w.shape[1]);
  DoubleTensor y = zeros({x.shape[0], w.shape[0]});
  for (size_t n = 0; n < rows; ++n) {
    for (size_t o = 0; o < out; ++o) {
      double sum = bias != nullptr ? bias->values[o] : 0.0;
      for (size_t i = 0; i < in; ++i) sum += x.values[n * in + i] * w.values[o * in + i];
      y.values[n * out + o] = sum;
    }
  }
  return y;
}

DoubleTensor reference_conv2d(const Conv2dConfig& config, const DoubleTensor& x, const DoubleTensor& w,
                              const DoubleTensor* bias) {
  const int64_t p_size = (x.shape[1] + 2 * config.pad - w.shape[1]) / config.stride + 1;
  const int64_t q_size = (x.shape[2] + 2 * config.pad - w.shape[2]) / config.stride + 1;
  DoubleTensor y = zeros({x.shape[0], p_size, q_size, w.shape[0]});
  for_each(y.shape, [&](int64_t n, int64_t p, int64_t q, int64_t k) {
    double sum = bias != nullptr ? bias->values[static_cast<size_t>(k)] : 0.0;
    for (int64_t r = 0; r < w.shape[1]; ++r) {
      for (int64_t s = 0; s < w.shape[2]; ++s) {
        const int64_t row = p * config.stride - config.pad + r;
        const int64_t column = q * config.stride - config.pad + s;
        if (!inside(x.shape, row, column)) continue;
        for (int64_t c = 0; c < w.shape[3]; ++c)
          sum += x.values[at(x.shape, n, row, column, c)] * w.values[at(w.shape, k, r, s, c)];
      }
    }
    y.values[at(y.shape, n, p, q, k)] = sum;
  });
  return config.relu ? reference_relu(std::move(y)) : y;
}

DoubleTensor reference_relu(DoubleTensor x) {
  for (double& v : x.values) v = std::max(v, 0.0);
  return x;
}

DoubleTensor reference_batch_norm(const BatchNormConfig& config, DoubleTensor x, const DoubleTensor& weight,
                                  const DoubleTensor& bias) {
  const size_t channels = weight.values.size();
  const double rows = static_cast<double>(x.values.size()) / static_cast<double>(channels);
  std::vector<double> mean(channels), variance(channels);
  for (size_t i = 0; i < x.values.size(); ++i) mean[i % channels] += x.values[i] / rows;
  for (size_t i = 0; i < x.values.size(); ++i)
    variance[i % channels] += std::pow(x.values[i] - mean[i % channels], 2) / rows;
  for (size_t i = 0; i < x.values.size(); ++i) {
    const size_t c = i % channels;
    x.values[i] =
        (x.values[i] - mean[c]) / std::sqrt(variance[c] + static_cast<double>(config.eps)) * weight.values[c] +
        bias.values[c];
  }
  return config.relu ? reference_relu(x) : x;
}

DoubleTensor reference_gelu(DoubleTensor x) {
  for (double& v : x.values) v *= 0.5 * std::erfc(-v / std::sqrt(2.0));
  return x;
}

DoubleTensor reference_gelu_tanh(DoubleTensor x) {
  for (double& v : x.values) v *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  return x;
}

DoubleTensor reference_layer_norm(double eps, DoubleTensor x, const DoubleTensor& weight, const DoubleTensor& bias) {
  const size_t columns = weight.values.size();
  for (size_t first = 0; first < x.values.size(); first += columns) {
    double mean = 0, variance = 0;
    for (size_t c = 0; c < columns; ++c) mean += x.values[first + c] / static_cast<double>(columns);
    for (size_t c = 0; c < columns; ++c)
      variance += std::pow(x.values[first + c] - mean, 2) / static_cast<double>(columns);
    for (size_t c = 0; c < columns; ++c) {
      double& value = x.values[first + c];
      value = (value - mean) / std::sqrt(variance + eps) * weight.values[c] + bias.values[c];
    }
  }
  return x;
}

DoubleTensor reference_attention(int64_t heads, const DoubleTensor& x, DoubleTensor* log_sums) {
  const int64_t samples = x.shape[0], length = x.shape[1], width = x.shape[2] / 3, size = width / heads;
  const auto at = [&](int64_t n, int64_t t, int64_t part, int64_t h, int64_t d) {
    return x.values[static_cast<size_t>(((n * length + t) * 3 + part) * width + h * size + d)];
  };
  DoubleTensor y{x.shape.with_last(width), std::vector<double>(static_cast<size_t>(samples * length * width))};
  if (log_sums != nullptr)
    *log_sums = {{samples, heads, length}, std::vector<double>(static_cast<size_t>(samples * heads * length))};
  for (int64_t n = 0; n < samples; ++n) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < length; ++i) {
        std::vector<double> weights(static_cast<size_t>(i + 1));
        double sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < size; ++d) score += at(n, i, 0, h, d) * at(n, j, 1, h, d);
          sum += weights[static_cast<size_t>(j)] = std::exp(score / std::sqrt(static_cast<double>(size)));
        }
        for (int64_t d = 0; d < size; ++d) {
          double& value = y.values[static_cast<size_t>((n * length + i) * width + h * size + d)];
          for (int64_t j = 0; j <= i; ++j) value += weights[static_cast<size_t>(j)] / sum * at(n, j, 2, h, d);
        }
        if (log_sums != nullptr) log_sums->values[static_cast<size_t>((n * heads + h) * length + i)] = std::log(sum);
      }
    }
  }
  return y;
}

DoubleTensor reference_max_pool2d(const Pool2dConfig& config, const DoubleTensor& x) {
  return fold_windows(config, x, -std::numeric_limits<double>::infinity(),
                      [](double a, double b) { return std::max(a, b); });
}

DoubleTensor reference_avg_pool2d(const Pool2dConfig& config, const DoubleTensor& x) {
  const auto area = static_cast<double>(config.window * config.window);
  return fold_windows(config, x, 0.0, [area](double a, double b) { return a + b / area; });
}

DoubleTensor reference_adaptive_avg_pool2d(int64_t height, int64_t width, const DoubleTensor& x) {
  DoubleTensor y = zeros({x.shape[0], height, width, x.shape[3]});
  const auto first = [](int64_t i, int64_t from, int64_t to) { return i * from / to; };
  const auto last = [](int64_t i, int64_t from, int64_t to) { return ((i + 1) * from + to - 1) / to; };
  for_each(y.shape, [&](int64_t n, int64_t p, int64_t q, int64_t c) {
    const int64_t h0 = first(p, x.shape[1], height);
    const int64_t h1 = last(p, x.shape[1], height);
    const int64_t w0 = first(q, x.shape[2], width);
    const int64_t w1 = last(q, x.shape[2], width);
    double sum = 0.0;
    for (int64_t h = h0; h < h1; ++h) {
      for (int64_t w = w0; w < w1; ++w) sum += x.values[at(x.shape, n, h, w, c)];
    }
    y.values[at(y.shape, n, p, q, c)] = sum / static_cast<double>((h1 - h0) * (w1 - w0));
  });
  return y;
}

DoubleTensor reference_dropout(const DropoutConfig& config, DoubleTensor x) {
  const auto low = [](auto v) { return static_cast<uint32_t>(v); };
  const auto samples = static_cast<size_t>(x.shape[0]);
  const size_t elements = samples == 0 ? 0 : x.values.size() / samples;
  for (size_t n = 0; n < samples; ++n) {
    for (size_t e = 0; e < elements; ++e) {
      const auto words = philox4x32(
          {low(config.seed), low(config.seed >> 32)},
          {low(e / 4), low(config.first_sample + static_cast<int64_t>(n)), low(config.step), low(config.layer)});
      const bool kept = words[e % 4] >= static_cast<double>(config.p) * 0x1p32;
      x.values[n * elements + e] = kept ? x.values[n * elements + e] / (1.0 - static_cast<double>(config.p)) : 0.0;
    }
  }
  return x;
}

DoubleTensor reference_add(DoubleTensor a, const DoubleTensor& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
  return a;
}

}  // namespace vitrine::test
