// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elementwise.cuh"
#include "kernels/gelu.h"

namespace vitrine::cuda {
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

}  // namespace

void gelu_forward(ExecContext& ctx, ConstView x, View y) {
  with_storage(x.dtype,
               [&]<class T>() { map_elements<T, GeluForward>(ctx, {{x.as<T>()}}, {{y.as<T>()}}, x.numel(), {}); });
}

void gelu_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x) {
  with_storage(x.dtype, [&]<class T>() {
    map_elements<T, GeluBackward>(ctx, {{x.as<T>(), grad_y.as<T>()}}, {{grad_x.as<T>()}}, x.numel(), {});
  });
}

}  // namespace vitrine::cuda
