// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elementwise.cuh"
#include "kernels/relu.h"

namespace vitrine::cuda {
namespace {

struct ReluForward : Stateless<1> {
  __device__ void operator()(const float (&x)[1], float (&y)[1]) const { y[0] = x[0] <= 0.0F ? 0.0F : x[0]; }  // NaN compares false and stays NaN
};

struct ReluBackward : Stateless<2> {
  __device__ void operator()(const float (&x)[2], float (&y)[1]) const { y[0] = x[0] > 0.0F ? x[1] : 0.0F; }
};

}  // namespace

void relu_forward(ExecContext& ctx, ConstView x, View y) {
  with_storage(x.dtype, [&]<class T>() { map_elements<T, ReluForward>(ctx, {{x.as<T>()}}, {{y.as<T>()}}, x.numel(), {}); });
}

void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x) {
  with_storage(y.dtype, [&]<class T>() { map_elements<T, ReluBackward>(ctx, {{y.as<T>(), grad_y.as<T>()}}, {{grad_x.as<T>()}}, y.numel(), {}); });
}

}  // namespace vitrine::cuda
