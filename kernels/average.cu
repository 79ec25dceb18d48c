// SPDX-License-Identifier: Apache-2.0
#include "kernels/average.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/step_control.h"

namespace vitrine::cuda {
namespace {

/// in: param, average   out: average
struct Average {
  static constexpr int kReads = 2, kWrites = 1;
  const float* control;
  const int32_t* step;
  float weight;
  bool first;

  __device__ bool begin() {
    first = *step == 1;
    return control[StepControl::kActive] == 1.0F;
  }
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = first ? in[0] : in[1] + weight * (in[0] - in[1]);
  }
};

struct Exchange : Stateless<2, 2> {
  __device__ void operator()(const float (&in)[2], float (&out)[2]) const {
    out[0] = in[1];
    out[1] = in[0];
  }
};

}  // namespace

void update_average(ExecContext& ctx, double decay, ConstView param, View average, ConstView step, ConstView control) {
  auto* a = average.as<float>();
  map_elements<float, Average>(ctx, {{param.as<float>(), a}}, {{a}}, param.numel(),
                               {control.as<float>(), step.as<int32_t>(), static_cast<float>(1.0 - decay), false});
}

void exchange(ExecContext& ctx, View a, View b) {
  auto* x = a.as<float>();
  auto* y = b.as<float>();
  map_elements<float, Exchange>(ctx, {{x, y}}, {{x, y}}, a.numel(), {});
}

}  // namespace vitrine::cuda
