// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include "kernels/cpu/exp.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/storage.h"
#include "kernels/elementwise.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {
namespace {

constexpr int64_t kElementwiseGrain = 16384;

template <class T>
void add_all(const T* a, const T* b, T* y, int64_t count) {
  parallel_for(count, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& sum, int64_t i) {
      auto other = sum;
      load(a + i, sum);
      load(b + i, other);
      sum += other;
      store(sum, y + i);
    });
  });
}

template <class T>
void forward(const T* x, T* y, int64_t count) {
  parallel_for(count, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& value, int64_t i) {
      const auto zero = value;
      load(x + i, value);
      value = value <= 0.0F ? zero : value;  // NaN compares false and stays NaN
      store(value, y + i);
    });
  });
}

template <class T>
void backward(const T* y, const T* grad_y, T* grad_x, int64_t count) {
  parallel_for(count, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& gradient, int64_t i) {
      const auto zero = gradient;
      auto output = zero;
      load(y + i, output);
      load(grad_y + i, gradient);
      gradient = output > 0.0F ? gradient : zero;
      store(gradient, grad_x + i);
    });
  });
}

}  // namespace

void add(ExecContext&, ConstView a, ConstView b, View y) {
  with_storage(y.dtype, [&]<class T>(T) { add_all(a.as<T>(), b.as<T>(), y.as<T>(), y.numel()); });
}

void relu_forward(ExecContext&, ConstView x, View y) {
  with_storage(x.dtype, [&]<class T>(T) { forward(x.as<T>(), y.as<T>(), x.numel()); });
}

void relu_backward(ExecContext&, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode) {
  with_storage(y.dtype, [&]<class T>(T) { backward(y.as<T>(), grad_y.as<T>(), grad_x.as<T>(), y.numel()); });
  if (sums) portable::column_sums(grad_x, sums.as<float>(), mode);
}

namespace {

constexpr int64_t kTanhGrain = 4096;  // elements
constexpr float kCubic = 0.044715F;
constexpr float kTwoRoot2Pi = 1.59576912F;  // 2 * sqrt(2 / pi)

/// (1 + tanh(sqrt(2 / pi) * (x + kCubic * x^3))) / 2
template <class Value>
void share_of(const Value& x, Value& share) {
  Value power = x * x * x * -(kCubic * kTwoRoot2Pi) - x * kTwoRoot2Pi;
  exp(power, power);
  share = 1.0F / (power + 1.0F);
}

}  // namespace

void gelu_tanh_forward(ExecContext&, ConstView x, View y) {
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const from = x.as<T>();
    T* const to = y.as<T>();
    parallel_for(x.numel(), kTanhGrain, [=](int64_t begin, int64_t end) {
      for_lanes(begin, end, [=](auto& value, int64_t i) {
        auto share = value;
        load(from + i, value);
        share_of(value, share);
        value *= share;
        store(value, to + i);
      });
    });
  });
}

void gelu_tanh_backward(ExecContext&, ConstView x, ConstView grad_y, View grad_x) {
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const from = x.as<T>();
    const T* const gradient = grad_y.as<T>();
    T* const to = grad_x.as<T>();
    parallel_for(x.numel(), kTanhGrain, [=](int64_t begin, int64_t end) {
      for_lanes(begin, end, [=](auto& value, int64_t i) {
        auto share = value, grad = value;
        load(from + i, value);
        load(gradient + i, grad);
        share_of(value, share);
        grad *= share + value * share * (1.0F - share) * (value * value * (3.0F * kCubic * kTwoRoot2Pi) + kTwoRoot2Pi);
        store(grad, to + i);
      });
    });
  });
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
