// SPDX-License-Identifier: Apache-2.0
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

}  // namespace vitrine::cuda
