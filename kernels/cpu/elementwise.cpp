// SPDX-License-Identifier: Apache-2.0
#include "kernels/implementations.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {
namespace {
constexpr int64_t kGrain = 16384;
}

void add(ExecContext&, ConstView a, ConstView b, View y) {
  const float* left = a.as<float>();
  const float* right = b.as<float>();
  float* out = y.as<float>();
  parallel_for(a.numel(), kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = left[i] + right[i];
  });
}

}  // namespace vitrine::cpu
