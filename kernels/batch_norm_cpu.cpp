// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/batch_norm.h"
#include "kernels/cpu/storage.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::batch_norm::VITRINE_CPU_LEVEL {
namespace {

// A thread takes whole cache lines of channels, so that the order of additions does not depend on the number of
// threads.
constexpr int64_t kChannelGrain = 16;
constexpr int64_t kMostChannels = 64;       // at once
constexpr int64_t kBlockRows = 64;          // added up in f32; blocks are combined in double precision
constexpr int64_t kBatchNormGrain = 16384;  // elements

using ChannelFloats = std::array<float, kMostChannels>;
using ChannelDoubles = std::array<double, kMostChannels>;

/// Calls body(first, count) for groups of at most kMostChannels channels, in parallel.
template <class Body>
void for_channels(int64_t channels, const Body& body) {
  parallel_for(channels, kChannelGrain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; c += kMostChannels) body(c, std::min(kMostChannels, end - c));
  });
}

/// Calls body(row) for rows of (rows, channels), in parallel.
template <class Body>
void for_rows(int64_t rows, int64_t channels, const Body& body) {
  parallel_for(rows, std::max<int64_t>(1, kBatchNormGrain / channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

template <class T>
void moments_of(const T* x, int64_t rows, int64_t stride, int64_t count, float* mean_out, float* squares_out) {
  ChannelDoubles mean{}, squares{};
  for (int64_t first = 0; first < rows; first += kBlockRows) {
    const int64_t block = std::min(kBlockRows, rows - first);
    ChannelFloats sum{}, rest{}, deviations{};
    for (int64_t r = first; r < first + block; ++r) {
      for_lanes(0, count, [&](auto& value, int64_t c) {
        auto total = value;
        load(sum.data() + c, total);
        load(x + r * stride + c, value);
        total += value;
        store(total, sum.data() + c);
      });
    }
    for (int64_t c = 0; c < count; ++c) sum[static_cast<size_t>(c)] /= static_cast<float>(block);
    for (int64_t r = first; r < first + block; ++r) {
      for_lanes(0, count, [&](auto& value, int64_t c) {
        auto total = value, center = value, missed = value;
        load(deviations.data() + c, total);
        load(rest.data() + c, missed);
        load(sum.data() + c, center);
        load(x + r * stride + c, value);
        value -= center;
        total += value * value;
        missed += value;
        store(total, deviations.data() + c);
        store(missed, rest.data() + c);
      });
    }
    const auto before = static_cast<double>(first), added = static_cast<double>(block), after = before + added;
    for (size_t c = 0; c < static_cast<size_t>(count); ++c) {
      const double missed = static_cast<double>(rest[c]) / added;  // what rounding took from the block's mean
      const double delta = static_cast<double>(sum[c]) + missed - mean[c];
      mean[c] += delta * added / after;
      squares[c] +=
          static_cast<double>(deviations[c]) - missed * missed * added + delta * delta * before * added / after;
    }
  }
  for (size_t c = 0; c < static_cast<size_t>(count); ++c) {
    mean_out[c] = static_cast<float>(mean[c]);
    squares_out[c] = static_cast<float>(squares[c]);
  }
}

template <class T>
void sums_of(const T* x, const T* grad_y, const float* mean, int64_t rows, int64_t stride, int64_t count,
             ChannelDoubles& sums, ChannelDoubles& dots) {
  for (int64_t first = 0; first < rows; first += kBlockRows) {
    const int64_t end = std::min(rows, first + kBlockRows);
    ChannelFloats sum{}, dot{};
    for (int64_t r = first; r < end; ++r) {
      for_lanes(0, count, [&](auto& value, int64_t c) {
        auto total = value, product = value, center = value, gradient = value;
        load(sum.data() + c, total);
        load(dot.data() + c, product);
        load(mean + c, center);
        load(grad_y + r * stride + c, gradient);
        load(x + r * stride + c, value);
        total += gradient;
        product += gradient * (value - center);
        store(total, sum.data() + c);
        store(product, dot.data() + c);
      });
    }
    for (size_t c = 0; c < static_cast<size_t>(count); ++c) {
      sums[c] += static_cast<double>(sum[c]);
      dots[c] += static_cast<double>(dot[c]);
    }
  }
}

}  // namespace

void moments(ExecContext&, ConstView x, View moments) {
  const int64_t channels = moments.shape[1], rows = x.numel() / channels;
  auto* const out = moments.as<float>();
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const from = x.as<T>();
    for_channels(channels, [=](int64_t c, int64_t count) {
      moments_of(from + c, rows, channels, count, out + c, out + channels + c);
    });
  });
}

void sums(ExecContext&, int64_t rows, ConstView moments, View sums) {
  const auto* const mean = moments.as<float>();
  auto* const out = sums.as<float>();
  for (int64_t c = 0; c < sums.numel(); ++c) out[c] = static_cast<float>(rows) * mean[c];
}

void recenter(ExecContext&, int64_t rows, int64_t total_rows, ConstView sums, View moments) {
  const int64_t channels = sums.numel();
  auto* const mean = moments.as<float>();
  float* const squares = mean + channels;
  const auto* const sum = sums.as<float>();
  for (int64_t c = 0; c < channels; ++c) {
    const float center = sum[c] / static_cast<float>(total_rows);
    const float delta = mean[c] - center;
    squares[c] += static_cast<float>(rows) * delta * delta;
    mean[c] = center;
  }
}

void statistics(ExecContext&, BatchNormConfig config, int64_t total_rows, ConstView moments, View statistics,
                View running_mean, View running_var) {
  const int64_t channels = moments.shape[1];
  const auto* const mean = moments.as<float>();
  const float* const squares = mean + channels;
  auto* const out = statistics.as<float>();
  auto* const average = running_mean.as<float>();
  auto* const variance = running_var.as<float>();
  const auto rows = static_cast<float>(total_rows), others = static_cast<float>(total_rows - 1);
  for (int64_t c = 0; c < channels; ++c) {
    out[c] = mean[c];
    out[channels + c] = 1.0F / std::sqrt(squares[c] / rows + config.eps);
    if (average == nullptr || !std::isfinite(mean[c]) || !std::isfinite(squares[c])) continue;
    average[c] = (1.0F - config.momentum) * average[c] + config.momentum * mean[c];
    variance[c] = (1.0F - config.momentum) * variance[c] + config.momentum * (squares[c] / others);
  }
}

void running(ExecContext&, BatchNormConfig config, ConstView running_mean, ConstView running_var, View statistics) {
  const int64_t channels = running_mean.numel();
  const auto* const mean = running_mean.as<float>();
  const auto* const variance = running_var.as<float>();
  auto* const out = statistics.as<float>();
  for (int64_t c = 0; c < channels; ++c) {
    out[c] = mean[c];
    out[channels + c] = 1.0F / std::sqrt(variance[c] + config.eps);
  }
}

namespace {

template <class T>
void normalize(bool relu, const T* x, int64_t rows, int64_t channels, const float* mean, const float* weight,
               const float* bias, T* y) {
  const float* const invstd = mean + channels;
  for_rows(rows, channels, [=](int64_t row) {
    for_lanes(0, channels, [=](auto& value, int64_t c) {
      const auto zero = value;
      auto center = zero, scale = zero, factor = zero, shift = zero;
      load(mean + c, center);
      load(invstd + c, scale);
      load(weight + c, factor);
      load(bias + c, shift);
      scale *= factor;
      load(x + row * channels + c, value);
      value = (value - center) * scale + shift;
      if (relu) value = value <= 0.0F ? zero : value;  // NaN compares false and stays NaN
      store(value, y + row * channels + c);
    });
  });
}

}  // namespace

void forward(ExecContext&, BatchNormConfig config, ConstView x, ConstView statistics, ConstView weight, ConstView bias,
             View y) {
  const int64_t channels = weight.numel();
  with_storage(x.dtype, [&]<class T>(T) {
    normalize(config.relu, x.as<T>(), x.numel() / channels, channels, statistics.as<float>(), weight.as<float>(),
              bias.as<float>(), y.as<T>());
  });
}

void backward_sums(ExecContext&, ConstView x, ConstView grad_y, ConstView statistics, View sums, View grad_weight,
                   View grad_bias, GradMode mode) {
  const int64_t channels = grad_bias.numel(), rows = x.numel() / channels;
  const auto* const mean = statistics.as<float>();
  const float* const invstd = mean + channels;
  auto* const out = sums.as<float>();
  auto* const to_weight = grad_weight.as<float>();
  auto* const to_bias = grad_bias.as<float>();
  const float kept = mode == GradMode::accumulate ? 1.0F : 0.0F;
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const from = x.as<T>();
    const T* const gradient = grad_y.as<T>();
    for_channels(channels, [=](int64_t first, int64_t count) {
      ChannelDoubles sum{}, dot{};
      sums_of(from + first, gradient + first, mean + first, rows, channels, count, sum, dot);
      for (int64_t k = 0; k < count; ++k) {
        const int64_t c = first + k;
        out[c] = static_cast<float>(sum[static_cast<size_t>(k)]);
        out[channels + c] = static_cast<float>(dot[static_cast<size_t>(k)] * static_cast<double>(invstd[c]));
        to_bias[c] = (kept != 0.0F ? to_bias[c] : 0.0F) + out[c];
        to_weight[c] = (kept != 0.0F ? to_weight[c] : 0.0F) + out[channels + c];
      }
    });
  });
}

namespace {

template <class T>
void data_gradient(const T* x, const T* grad_y, int64_t rows, int64_t channels, const float* mean, const float* weight,
                   const float* sums, float share, T* grad_x) {
  const float* const invstd = mean + channels;
  const float* const dots = sums + channels;
  for_rows(rows, channels, [=](int64_t row) {
    for_lanes(0, channels, [=](auto& value, int64_t c) {
      const auto zero = value;
      auto center = zero, inverse = zero, average = zero, slope = zero, scale = zero, gradient = zero;
      load(mean + c, center);
      load(invstd + c, inverse);
      load(sums + c, average);
      load(dots + c, slope);
      load(weight + c, scale);
      average *= share;
      slope *= share * inverse;
      scale *= inverse;
      load(grad_y + row * channels + c, gradient);
      load(x + row * channels + c, value);
      value = scale * (gradient - average - (value - center) * slope);
      store(value, grad_x + row * channels + c);
    });
  });
}

}  // namespace

void backward_data(ExecContext&, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight, ConstView sums,
                   int64_t total_rows, View grad_x) {
  const int64_t channels = weight.numel();
  with_storage(x.dtype, [&]<class T>(T) {
    data_gradient(x.as<T>(), grad_y.as<T>(), x.numel() / channels, channels, statistics.as<float>(), weight.as<float>(),
                  sums.as<float>(), 1.0F / static_cast<float>(total_rows), grad_x.as<T>());
  });
}

}  // namespace vitrine::cpu::batch_norm::VITRINE_CPU_LEVEL
