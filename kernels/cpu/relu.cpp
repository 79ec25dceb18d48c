// SPDX-License-Identifier: Apache-2.0
#include "kernels/implementations.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {
namespace {
constexpr int64_t kGrain = 16384;
}

void relu_forward(ExecContext&, ConstView x, View y) {
  const float* in = x.as<float>();
  float* out = y.as<float>();
  parallel_for(x.numel(), kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = in[i] <= 0.0F ? 0.0F : in[i];  // a NaN compares false and stays
  });
}

void relu_backward(ExecContext&, ConstView y, ConstView grad_y, View grad_x) {
  const float* output = y.as<float>();
  const float* in = grad_y.as<float>();
  float* out = grad_x.as<float>();
  parallel_for(y.numel(), kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = output[i] > 0.0F ? in[i] : 0.0F;
  });
}

}  // namespace vitrine::cpu
