// SPDX-License-Identifier: Apache-2.0
#include "kernels/average.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/run.h"
#include "kernels/step_control.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kAverageGrain = 16384;

void update_average(ExecContext&, double decay, ConstView param, View average, ConstView step, ConstView control) {
  if (control.as<float>()[StepControl::kActive] != 1.0F) return;
  const bool first = *step.as<int32_t>() == 1;
  const auto weight = static_cast<float>(1.0 - decay);
  const float* p = param.as<float>();
  float* a = average.as<float>();
  parallel_for(param.numel(), kAverageGrain, [=](int64_t begin, int64_t end) {
    if (first) {
      std::copy(p + begin, p + end, a + begin);
      return;
    }
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) a[i] += weight * (p[i] - a[i]);
  });
}

void exchange(ExecContext&, View a, View b) {
  float* x = a.as<float>();
  float* y = b.as<float>();
  parallel_for(a.numel(), kAverageGrain,
               [=](int64_t begin, int64_t end) { std::swap_ranges(x + begin, x + end, y + begin); });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // average.cu
void update_average(ExecContext& ctx, double decay, ConstView param, View average, ConstView step, ConstView control);
void exchange(ExecContext& ctx, View a, View b);
}  // namespace cuda

void update_average(ExecContext& ctx, double decay, ConstView param, View average, ConstView step, ConstView control) {
  constexpr const char* kName = "update_average";
  if (!(decay > 0.0 && decay < 1.0))
    throw ConfigError(fmt::format("{}: decay is {}, expected a number between 0 and 1", kName, decay));
  check::rank(kName, "param", param, 1, "(n)");
  check::tensor(kName, "param", param, DType::f32, ctx);
  check::tensor(kName, "average", average, param.shape, DType::f32, ctx);
  check::tensor(kName, "step", step, {1}, DType::i32, ctx);
  check::tensor(kName, "control", control, {StepControl::kCount}, DType::f32, ctx);
  check::no_overlap(kName, {"average", average}, {{"param", param}, {"step", step}, {"control", control}});
  run(ctx, {kName, {param, average, step, control}, {average}}, cpu::update_average,
      VITRINE_IF_CUDA(cuda::update_average), decay, param, average, step, control);
}

void exchange(ExecContext& ctx, View a, View b) {
  constexpr const char* kName = "exchange";
  check::rank(kName, "a", a, 1, "(n)");
  check::tensor(kName, "a", a, DType::f32, ctx);
  check::tensor(kName, "b", b, a.shape, DType::f32, ctx);
  check::no_overlap(kName, {"a", a}, {{"b", b}});
  run(ctx, {kName, {a, b}, {a, b}}, cpu::exchange, VITRINE_IF_CUDA(cuda::exchange), a, b);
}

}  // namespace vitrine
