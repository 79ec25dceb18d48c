// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reference_light.h"

#include <cmath>
#include <functional>
#include <limits>

namespace vitrine::reference {
namespace {

size_t at(const Shape& s, int64_t n, int64_t h, int64_t w, int64_t c) {
  return static_cast<size_t>(((n * s[1] + h) * s[2] + w) * s[3] + c);
}

/// Calls visit(y index, x index or -1 for padding, position in the window, elements of the window) for every element of
/// every window of a pool.
using Visit = std::function<void(size_t, int64_t, int, int64_t)>;
void each_window_element(const Pool2dConfig& k, const Shape& x, const Visit& visit) {
  const int64_t rows = (x[1] + 2 * k.pad - k.window) / k.stride + 1;
  const int64_t columns = (x[2] + 2 * k.pad - k.window) / k.stride + 1;
  const Shape y{x[0], rows, columns, x[3]};
  for (int64_t n = 0; n < x[0]; ++n)
    for (int64_t p = 0; p < rows; ++p)
      for (int64_t q = 0; q < columns; ++q)
        for (int64_t c = 0; c < x[3]; ++c)
          for (int64_t r = 0; r < k.window; ++r)
            for (int64_t s = 0; s < k.window; ++s) {
              const int64_t h = p * k.stride - k.pad + r;
              const int64_t w = q * k.stride - k.pad + s;
              const bool inside = h >= 0 && h < x[1] && w >= 0 && w < x[2];
              visit(at(y, n, p, q, c), inside ? static_cast<int64_t>(at(x, n, h, w, c)) : -1,
                    static_cast<int>(r * k.window + s), k.window * k.window);
            }
}

void each_adaptive_element(const Shape& x, const Shape& y, const Visit& visit) {
  const auto low = [](int64_t i, int64_t in, int64_t out) {
    return static_cast<int64_t>(std::floor(static_cast<double>(i * in) / static_cast<double>(out)));
  };
  const auto high = [](int64_t i, int64_t in, int64_t out) {
    return static_cast<int64_t>(std::ceil(static_cast<double>((i + 1) * in) / static_cast<double>(out)));
  };
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t p = 0; p < y[1]; ++p)
      for (int64_t q = 0; q < y[2]; ++q)
        for (int64_t c = 0; c < y[3]; ++c) {
          const int64_t elements =
              (high(p, x[1], y[1]) - low(p, x[1], y[1])) * (high(q, x[2], y[2]) - low(q, x[2], y[2]));
          for (int64_t h = low(p, x[1], y[1]); h < high(p, x[1], y[1]); ++h)
            for (int64_t w = low(q, x[2], y[2]); w < high(q, x[2], y[2]); ++w)
              visit(at(y, n, p, q, c), static_cast<int64_t>(at(x, n, h, w, c)), 0, elements);
        }
}

Values spread_of(const Shape& x, const std::vector<float>& grad_y, const std::function<void(const Visit&)>& each) {
  Values grad_x(static_cast<size_t>(x.numel()), 0.0);
  each([&](size_t from, int64_t to, int, int64_t elements) {
    if (to >= 0) grad_x[static_cast<size_t>(to)] += static_cast<double>(grad_y[from]) / static_cast<double>(elements);
  });
  return grad_x;
}

}  // namespace

MaxPool max_pool2d(const Pool2dConfig& config, const Shape& x_shape, const std::vector<float>& x) {
  MaxPool result;
  const auto count = static_cast<size_t>(pool2d_output_shape(config, x_shape).numel());
  result.y.assign(count, -std::numeric_limits<double>::infinity());
  result.indices.assign(count, -1);
  each_window_element(config, x_shape, [&](size_t to, int64_t from, int position, int64_t) {
    if (from < 0) return;
    const auto value = static_cast<double>(x[static_cast<size_t>(from)]);
    if (result.indices[to] >= 0 && !(value > result.y[to]) && !std::isnan(value)) return;
    result.y[to] = value;
    result.indices[to] = position;
  });
  return result;
}

Values max_pool2d_backward(const Pool2dConfig& config, const Shape& x_shape, const std::vector<float>& grad_y,
                           const std::vector<uint8_t>& indices) {
  Values grad_x(static_cast<size_t>(x_shape.numel()), 0.0);
  each_window_element(config, x_shape, [&](size_t from, int64_t to, int position, int64_t) {
    if (to >= 0 && indices[from] == position) grad_x[static_cast<size_t>(to)] += static_cast<double>(grad_y[from]);
  });
  return grad_x;
}

Values avg_pool2d_backward(const Pool2dConfig& config, const Shape& x_shape, const std::vector<float>& grad_y) {
  return spread_of(x_shape, grad_y, [&](const Visit& visit) { each_window_element(config, x_shape, visit); });
}

Values adaptive_avg_pool2d_backward(const Shape& x_shape, const Shape& y_shape, const std::vector<float>& grad_y) {
  return spread_of(x_shape, grad_y, [&](const Visit& visit) { each_adaptive_element(x_shape, y_shape, visit); });
}

CrossEntropy cross_entropy(const CrossEntropyConfig& config, int64_t classes, const std::vector<float>& logits,
                           const std::vector<int32_t>& targets) {
  CrossEntropy result;
  result.grad.assign(logits.size(), 0.0);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == config.ignore_index) continue;
    const float* row = logits.data() + i * static_cast<size_t>(classes);
    int64_t largest = 0;
    for (int64_t j = 1; j < classes; ++j)
      if (row[j] > row[largest]) largest = j;
    double sum = 0.0;
    for (int64_t j = 0; j < classes; ++j)
      sum += std::exp(static_cast<double>(row[j]) - static_cast<double>(row[largest]));
    const double log_sum = std::log(sum) + static_cast<double>(row[largest]);
    const double smoothing = static_cast<double>(config.label_smoothing),
                 uniform = smoothing / static_cast<double>(classes);
    int64_t beaten = 0;
    for (int64_t j = 0; j < classes; ++j) {
      const double share = uniform + (j == targets[i] ? 1.0 - smoothing : 0.0);
      if (share > 0.0) result.loss_sum += share * (log_sum - static_cast<double>(row[j]));
      beaten += row[j] > row[targets[i]] || (row[j] == row[targets[i]] && j < targets[i]) ? 1 : 0;
    }
    result.valid += 1;
    result.correct += largest == targets[i] ? 1 : 0;
    result.top5 += beaten < 5 ? 1 : 0;
    for (int64_t j = 0; j < classes; ++j) {
      const double probability = std::exp(static_cast<double>(row[j]) - log_sum);
      result.grad[i * static_cast<size_t>(classes) + static_cast<size_t>(j)] =
          static_cast<double>(config.grad_scale) * (probability - uniform - (j == targets[i] ? 1.0 - smoothing : 0.0));
    }
  }
  return result;
}

void Optimizer::sgd(const SgdConfig& config, double grad) {
  const double g = grad + config.weight_decay * p;
  step += 1;
  first = step == 1 ? g : config.momentum * first + g;
  if (config.momentum == 0.0) {
    p -= config.lr * g;
  } else {
    p -= config.lr * (config.nesterov ? g + config.momentum * first : first);
  }
}

void Optimizer::adam(const AdamConfig& config, double grad) {
  step += 1;
  double g = grad;
  if (config.decoupled) {
    p -= config.lr * config.weight_decay * p;
  } else {
    g += config.weight_decay * p;
  }
  first = config.beta1 * first + (1.0 - config.beta1) * g;
  second = config.beta2 * second + (1.0 - config.beta2) * g * g;
  const double mean = first / (1.0 - std::pow(config.beta1, static_cast<double>(step)));
  const double square = second / (1.0 - std::pow(config.beta2, static_cast<double>(step)));
  p -= config.lr * mean / (std::sqrt(square) + config.eps);
}

Values resize_normalize(const Normalization& normalization, const Shape& source, const std::vector<uint8_t>& pixels,
                        const Shape& target) {
  const auto position = [](int64_t i, int64_t in, int64_t out) {
    const double p = (static_cast<double>(i) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5;
    return std::min(std::max(p, 0.0), static_cast<double>(in - 1));
  };
  const auto pixel = [&](int64_t h, int64_t w, int64_t c) {
    return static_cast<double>(pixels[static_cast<size_t>((h * source[1] + w) * source[2] + c)]) / 255.0;
  };
  Values y;
  for (int64_t i = 0; i < target[0]; ++i)
    for (int64_t j = 0; j < target[1]; ++j)
      for (int64_t c = 0; c < target[2]; ++c) {
        const double h = position(i, source[0], target[0]);
        const double w = position(j, source[1], target[1]);
        const auto h0 = static_cast<int64_t>(h);
        const auto w0 = static_cast<int64_t>(w);
        const int64_t h1 = std::min(h0 + 1, source[0] - 1);
        const int64_t w1 = std::min(w0 + 1, source[1] - 1);
        const double a = h - static_cast<double>(h0);
        const double b = w - static_cast<double>(w0);
        const double value = (1 - a) * ((1 - b) * pixel(h0, w0, c) + b * pixel(h0, w1, c)) +
                             a * ((1 - b) * pixel(h1, w0, c) + b * pixel(h1, w1, c));
        const auto channel = static_cast<size_t>(c);
        y.push_back((value - static_cast<double>(normalization.mean[channel])) /
                    static_cast<double>(normalization.std[channel]));
      }
  return y;
}

}  // namespace vitrine::reference
