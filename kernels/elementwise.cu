// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/elementwise.h"

namespace vitrine::cuda {
namespace {

struct Add : Stateless<2> {
  __device__ void operator()(const float (&x)[2], float (&y)[1]) const { y[0] = x[0] + x[1]; }
};

}  // namespace

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  with_storage(a.dtype, [&]<class T>() {
    map_elements<T, Add>(ctx, {{a.as<T>(), b.as<T>()}}, {{y.as<T>()}}, a.numel(), {});
  });
}

namespace {

struct ReluForward : Stateless<1> {
  __device__ void operator()(const float (&x)[1], float (&y)[1]) const {
    y[0] = x[0] <= 0.0F ? 0.0F : x[0];
  }  // NaN compares false and stays NaN
};

struct ReluBackward : Stateless<2> {
  __device__ void operator()(const float (&x)[2], float (&y)[1]) const { y[0] = x[0] > 0.0F ? x[1] : 0.0F; }
};

/// A pack of the gradient, and its part of the column sums.
template <class T, int V>
struct MaskedPack {
  const T* y;
  const T* grad_y;
  T* grad_x;
  int64_t packs;  // of a row

  __device__ void operator()(int64_t row, int64_t pack, float (&sums)[V]) const {
    using P = Pack<T, V>;
    const int64_t at = row * packs + pack;
    const P output = reinterpret_cast<const P*>(y)[at];
    P gradient = reinterpret_cast<const P*>(grad_y)[at];
    for (int e = 0; e < V; ++e) {
      gradient.v[e] = from_float<T>(to_float(output.v[e]) > 0.0F ? to_float(gradient.v[e]) : 0.0F);
      sums[e] += to_float(gradient.v[e]);
    }
    reinterpret_cast<P*>(grad_x)[at] = gradient;
  }
};

}  // namespace

void relu_forward(ExecContext& ctx, ConstView x, View y) {
  with_storage(x.dtype,
               [&]<class T>() { map_elements<T, ReluForward>(ctx, {{x.as<T>()}}, {{y.as<T>()}}, x.numel(), {}); });
}

void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode) {
  with_storage(y.dtype, [&]<class T>() {
    if (!sums)
      return map_elements<T, ReluBackward>(ctx, {{y.as<T>(), grad_y.as<T>()}}, {{grad_x.as<T>()}}, y.numel(), {});
    const int64_t columns = sums.numel(), rows = y.numel() / columns;
    const auto queue = [&]<int V>(std::integral_constant<int, V>) {
      queue_column_sums<V>(ctx, rows, MaskedPack<T, V>{y.as<T>(), grad_y.as<T>(), grad_x.as<T>(), columns / V}, sums,
                           mode);
    };
    constexpr int kElements = kPackElements<T>;
    const bool aligned = is_pack_aligned(y.data) && is_pack_aligned(grad_y.data) && is_pack_aligned(grad_x.data);
    if (columns % kElements == 0 && aligned) return queue(std::integral_constant<int, kElements>());
    queue(std::integral_constant<int, 1>());
  });
}

namespace {

__device__ inline float distribution(float x) { return 0.5F * (1.0F + erff(x * 0.70710678F)); }  // x / sqrt(2)
__device__ inline float density(float x) { return 0.39894228F * expf(-0.5F * x * x); }           // 1 / sqrt(2 pi)

struct GeluForward : Stateless<1> {
  __device__ void operator()(const float (&x)[1], float (&y)[1]) const { y[0] = x[0] * distribution(x[0]); }
};

struct GeluBackward : Stateless<2> {
  __device__ void operator()(const float (&x)[2], float (&y)[1]) const {
    y[0] = x[1] * (distribution(x[0]) + x[0] * density(x[0]));
  }
};

constexpr float kCubic = 0.044715F, kTwoRoot2Pi = 1.59576912F;  // 2 * sqrt(2 / pi)

/// (1 + tanh(sqrt(2 / pi) * (x + kCubic * x^3))) / 2
__device__ inline float share_of(float x) { return 1.0F / (1.0F + expf(-kTwoRoot2Pi * (x + kCubic * x * x * x))); }

struct TanhForward : Stateless<1> {
  __device__ void operator()(const float (&x)[1], float (&y)[1]) const { y[0] = x[0] * share_of(x[0]); }
};

struct TanhBackward : Stateless<2> {
  __device__ void operator()(const float (&x)[2], float (&y)[1]) const {
    const float share = share_of(x[0]);
    y[0] = x[1] * (share + x[0] * share * (1.0F - share) * kTwoRoot2Pi * (1.0F + 3.0F * kCubic * x[0] * x[0]));
  }
};

template <class F>
void map_forward(ExecContext& ctx, const ConstView& x, const View& y) {
  with_storage(x.dtype, [&]<class T>() { map_elements<T, F>(ctx, {{x.as<T>()}}, {{y.as<T>()}}, x.numel(), {}); });
}

template <class F>
void map_backward(ExecContext& ctx, const ConstView& x, const ConstView& grad_y, const View& grad_x) {
  with_storage(x.dtype, [&]<class T>() {
    map_elements<T, F>(ctx, {{x.as<T>(), grad_y.as<T>()}}, {{grad_x.as<T>()}}, x.numel(), {});
  });
}

}  // namespace

void gelu_forward(ExecContext& ctx, ConstView x, View y) { map_forward<GeluForward>(ctx, x, y); }
void gelu_tanh_forward(ExecContext& ctx, ConstView x, View y) { map_forward<TanhForward>(ctx, x, y); }
void gelu_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x) {
  map_backward<GeluBackward>(ctx, x, grad_y, grad_x);
}
void gelu_tanh_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x) {
  map_backward<TanhBackward>(ctx, x, grad_y, grad_x);
}

}  // namespace vitrine::cuda
