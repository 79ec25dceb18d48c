// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/layer_norm.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {
namespace {

constexpr int64_t kLayerNormGrain = 4096;  // elements

/// Calls body(row) for the rows of x (..., columns), in parallel.
template <class Body>
void for_rows(const ConstView& x, int64_t columns, const Body& body) {
  parallel_for(x.numel() / columns, std::max<int64_t>(1, kLayerNormGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace

void layer_norm_forward(ExecContext&, float eps, ConstView x, ConstView weight, ConstView bias, View y,
                        View statistics) {
  const int64_t columns = weight.numel();
  const auto count = static_cast<float>(columns);
  const auto *const w = weight.as<float>(), *const b = bias.as<float>();
  auto* const out = statistics ? statistics.as<float>() : nullptr;
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const all = x.as<T>();
    T* const results = y.as<T>();
    for_rows(x, columns, [&](int64_t row) {
      const T* const from = all + row * columns;
      T* const to = results + row * columns;
      const float mean = sum_row<1>(columns, [&](auto& value, int64_t i) { load(from + i, value[0]); })[0] / count;
      const float squares = sum_row<1>(columns, [&](auto& value, int64_t i) {
        load(from + i, value[0]);
        value[0] -= mean;
        value[0] *= value[0];
      })[0];
      const float inverse = 1.0F / std::sqrt(squares / count + eps);
      for_lanes(0, columns, [&](auto& value, int64_t i) {
        auto scale = value, shift = value;
        load(from + i, value);
        load(w + i, scale);
        load(b + i, shift);
        value = (value - mean) * inverse * scale + shift;
        store(value, to + i);
      });
      if (out == nullptr) return;
      out[2 * row] = mean;
      out[2 * row + 1] = inverse;
    });
  });
}

void layer_norm_backward_data(ExecContext&, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                              View grad_x) {
  const int64_t columns = weight.numel();
  const auto count = static_cast<float>(columns);
  const auto *const w = weight.as<float>(), *const of_rows = statistics.as<float>();
  with_storage(x.dtype, [&]<class T>(T) {
    const T *const all = x.as<T>(), *const gradients = grad_y.as<T>();
    T* const results = grad_x.as<T>();
    for_rows(x, columns, [&](int64_t row) {
      const T *const from = all + row * columns, *const gradient = gradients + row * columns;
      T* const to = results + row * columns;
      const float mean = of_rows[2 * row], inverse = of_rows[2 * row + 1];
      const auto terms = [&](auto& grad, auto& normal, int64_t i) {  // grad_y * weight, (x - mean) * inverse
        auto scale = grad;
        load(gradient + i, grad);
        load(w + i, scale);
        grad *= scale;
        load(from + i, normal);
        normal = (normal - mean) * inverse;
      };
      const auto [sum, dot] = sum_row<2>(columns, [&](auto& values, int64_t i) {
        terms(values[0], values[1], i);
        values[1] *= values[0];
      });
      const float mean_grad = sum / count, mean_dot = dot / count;
      for_lanes(0, columns, [&](auto& grad, int64_t i) {
        auto normal = grad;
        terms(grad, normal, i);
        grad = (grad - mean_grad - normal * mean_dot) * inverse;
        store(grad, to + i);
      });
    });
  });
}

void layer_norm_backward_weight(ExecContext&, ConstView x, ConstView grad_y, ConstView statistics, View grad_weight,
                                View grad_bias, GradMode mode) {
  const int64_t columns = grad_weight.numel(), rows = x.numel() / columns;
  const auto* const of_rows = statistics.as<float>();
  with_storage(x.dtype, [&]<class T>(T) {
    const T *const from = x.as<T>(), *const gradient = grad_y.as<T>();
    sum_columns(rows, columns, grad_bias.as<float>(), mode,
                [=](int64_t row, int64_t column, auto& value) { load(gradient + row * columns + column, value); });
    sum_columns(rows, columns, grad_weight.as<float>(), mode, [=](int64_t row, int64_t column, auto& value) {
      auto grad = value;
      load(gradient + row * columns + column, grad);
      load(from + row * columns + column, value);
      value = grad * ((value - of_rows[2 * row]) * of_rows[2 * row + 1]);
    });
  });
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
