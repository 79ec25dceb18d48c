// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/run.h"
#include "kernels/step_control.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"
#include "runtime/half.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kOptimizerGrain = 16384;
/// Elements that are updated before their 16-bit copy is written: all buffers of so many stay in the cache.
constexpr int64_t kCopiedElements = 2048;

/// Returns the number of the update, counted unless the decision has done so, and sets `factor`, by which the summed
/// gradient is multiplied; 0 when the step is not taken.
int32_t begin_update(const View& step, const View& control, float& factor) {
  if (control.as<float>()[StepControl::kActive] != 1.0F) return 0;
  factor = control.as<float>()[StepControl::kFactor];
  return step ? *step.as<int32_t>() += 1 : std::bit_cast<int32_t>(control.as<float>()[StepControl::kUpdate]);
}

bool is_finite(float value) { return value - value == 0.0F; }

/// `old` if `keeps`, else `next`. Bits rather than ?:, from which the compiler makes masked stores, which are slow on
/// some processors.
float keep_if(bool keeps, float old, float next) {
  const uint32_t mask = keeps ? ~uint32_t{0} : uint32_t{0};
  return std::bit_cast<float>((std::bit_cast<uint32_t>(old) & mask) | (std::bit_cast<uint32_t>(next) & ~mask));
}

/// Writes elements [begin, end) of the 16-bit copy.
void write_half(const float* param, const View& half_param, int64_t begin, int64_t end) {
  if (half_param.dtype == DType::f16) {
    narrow(param + begin, half_param.as<Half>() + begin, end - begin);
  } else {
    narrow(param + begin, half_param.as<BFloat16>() + begin, end - begin);
  }
}

/// Runs update(begin, end) over all elements of `param`, and copies the new parameters to `half_param`, if there is
/// one. `update` returns how many elements kept their values because the new ones were not finite.
template <class Update>
void update_elements(int64_t count, const float* param, const View& half_param, const View& control,
                     const Update& update) {
  std::atomic<bool> any_kept{false};
  parallel_for(count, kOptimizerGrain, [&](int64_t begin, int64_t end) {
    const int64_t together = half_param ? kCopiedElements : end - begin;
    bool kept = false;
    for (int64_t at = begin; at < end; at += together) {
      const int64_t until = std::min(at + together, end);
      if (update(at, until) > 0) kept = true;
      if (half_param) write_half(param, half_param, at, until);
    }
    if (kept) any_kept.store(true, std::memory_order_relaxed);
  });
  if (any_kept.load(std::memory_order_relaxed)) control.as<float>()[StepControl::kStopped] = StepControl::kByUpdate;
}

/// Calls update(range, config, half_param) for each range, with the constants and the 16-bit copy of the range.
template <class Config, class Update>
void for_each_range(const Config& config, int64_t count, const UpdateRanges& ranges, const View& half_param,
                    const Update& update) {
  if (ranges == nullptr) return update(UpdateRange{0, count}, config, half_param);
  for (const UpdateRange& range : *ranges) {
    Config of_range = config;
    of_range.lr = config.lr * range.lr_factor;
    of_range.weight_decay = range.weight_decay;
    update(range, of_range, half_param ? half_param.rows(range.begin, range.end) : View());
  }
}

// The loops get their constants and pointers by value: the compiler does not hoist members of a closure that threads
// share, and without that it does not vectorize.

struct SgdConstants {
  float lr, momentum, weight_decay, factor;
  float keep;  // momentum, or 0 in the first update
  bool guards;
};

/// Both return how many elements keep their values because the new ones are not finite.
int update_sgd_plain(const SgdConstants k, float* p, const float* g, int64_t begin, int64_t end) {
  int kept = 0;
#pragma omp simd reduction(+ : kept)
  for (int64_t i = begin; i < end; ++i) {
    const float next = p[i] - k.lr * (g[i] * k.factor + k.weight_decay * p[i]);
    const bool keeps = k.guards & !is_finite(next);
    p[i] = keep_if(keeps, p[i], next);
    kept += keeps ? 1 : 0;
  }
  return kept;
}

template <bool kNesterov>
int update_sgd_momentum(const SgdConstants k, float* p, const float* g, float* buffer, int64_t begin, int64_t end) {
  int kept = 0;
#pragma omp simd reduction(+ : kept)
  for (int64_t i = begin; i < end; ++i) {
    const float update = g[i] * k.factor + k.weight_decay * p[i];
    const float b = k.keep * buffer[i] + update;
    const float next = p[i] - k.lr * (kNesterov ? update + k.momentum * b : b);
    const bool keeps = k.guards & !(is_finite(next) & is_finite(b));
    buffer[i] = keep_if(keeps, buffer[i], b);
    p[i] = keep_if(keeps, p[i], next);
    kept += keeps ? 1 : 0;
  }
  return kept;
}

void sgd_update(ExecContext&, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step,
                View control, const UpdateRanges& ranges, View half_param, ConstView /*values*/) {
  float factor = 1.0F;
  const int32_t update = begin_update(step, control, factor);
  if (update == 0) return;
  const bool first = update == 1;
  for_each_range(config, param.numel(), ranges, half_param,
                 [&](const UpdateRange& range, const SgdConfig& of_range, const View& half_of_range) {
                   SgdConstants k{};
                   k.guards = control.as<float>()[StepControl::kKeepsFinite] == 1.0F;
                   k.lr = static_cast<float>(of_range.lr);
                   k.momentum = static_cast<float>(of_range.momentum);
                   k.weight_decay = static_cast<float>(of_range.weight_decay);
                   k.factor = factor;
                   k.keep = first ? 0.0F : k.momentum;
                   const int64_t count = range.end - range.begin;
                   float* p = param.as<float>() + range.begin;
                   const float* g = grad.as<float>() + range.begin;
                   if (!momentum_buffer) {
                     return update_elements(count, p, half_of_range, control, [=](int64_t begin, int64_t end) {
                       return update_sgd_plain(k, p, g, begin, end);
                     });
                   }
                   float* buffer = momentum_buffer.as<float>() + range.begin;
                   const auto update_part = of_range.nesterov ? update_sgd_momentum<true> : update_sgd_momentum<false>;
                   update_elements(count, p, half_of_range, control, [=](int64_t begin, int64_t end) {
                     // The first update must not read the buffer, whose content is undefined.
                     if (first) std::fill(buffer + begin, buffer + end, 0.0F);
                     return update_part(k, p, g, buffer, begin, end);
                   });
                 });
}

struct AdamConstants {
  float factor, coupled, shrink, beta1, beta2, rest1, rest2, step_size, correction, eps;
  bool guards;
};

/// Returns how many elements keep their values because the new ones are not finite.
int update_adam(const AdamConstants k, float* p, const float* g, float* m, float* v, int64_t begin, int64_t end) {
  int kept = 0;
#pragma omp simd reduction(+ : kept)
  for (int64_t i = begin; i < end; ++i) {
    const float decayed = p[i] * k.shrink;
    const float gradient = g[i] * k.factor + k.coupled * decayed;
    const float mean = k.beta1 * m[i] + k.rest1 * gradient;
    const float square = k.beta2 * v[i] + k.rest2 * gradient * gradient;
    const float next = decayed - k.step_size * mean / (std::sqrt(square) / k.correction + k.eps);
    const bool keeps = k.guards & !(is_finite(next) & is_finite(mean) & is_finite(square));
    m[i] = keep_if(keeps, m[i], mean);
    v[i] = keep_if(keeps, v[i], square);
    p[i] = keep_if(keeps, p[i], next);
    kept += keeps ? 1 : 0;
  }
  return kept;
}

void adam_update(ExecContext&, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq,
                 View step, View control, const UpdateRanges& ranges, View half_param, ConstView /*values*/) {
  float factor = 1.0F;
  const int32_t update = begin_update(step, control, factor);
  if (update == 0) return;
  const auto number = static_cast<double>(update);
  for_each_range(config, param.numel(), ranges, half_param,
                 [&](const UpdateRange& range, const AdamConfig& c, const View& half_of_range) {
                   AdamConstants k{};
                   k.guards = control.as<float>()[StepControl::kKeepsFinite] == 1.0F;
                   k.factor = factor;
                   k.step_size = static_cast<float>(c.lr / (1.0 - std::pow(c.beta1, number)));
                   k.correction = static_cast<float>(std::sqrt(1.0 - std::pow(c.beta2, number)));
                   k.beta1 = static_cast<float>(c.beta1);
                   k.beta2 = static_cast<float>(c.beta2);
                   k.rest1 = static_cast<float>(1.0 - c.beta1);
                   k.rest2 = static_cast<float>(1.0 - c.beta2);
                   k.eps = static_cast<float>(c.eps);
                   // One of the two has no effect: weight decay changes the gradient (Adam) or the parameter (AdamW).
                   k.coupled = static_cast<float>(c.decoupled ? 0.0 : c.weight_decay);
                   k.shrink = static_cast<float>(c.decoupled ? 1.0 - c.lr * c.weight_decay : 1.0);
                   float* p = param.as<float>() + range.begin;
                   const float* g = grad.as<float>() + range.begin;
                   float* m = exp_avg.as<float>() + range.begin;
                   float* v = exp_avg_sq.as<float>() + range.begin;
                   update_elements(range.end - range.begin, p, half_of_range, control,
                                   [=](int64_t begin, int64_t end) { return update_adam(k, p, g, m, v, begin, end); });
                 });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // optimizer.cu
void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step,
                View control, const UpdateRanges& ranges, View half_param, ConstView values);
void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq,
                 View step, View control, const UpdateRanges& ranges, View half_param, ConstView values);
}  // namespace cuda

namespace {

/// throws unless the buffers have equal lengths and share no memory, and step and control fit.
void check_update(const char* name, const ExecContext& ctx, std::initializer_list<check::Argument> buffers,
                  const ConstView& step, const ConstView& control) {
  check::rank(name, "param", buffers.begin()->view, 1, "(n)");
  const Shape& shape = buffers.begin()->view.shape;
  for (const check::Argument& a : buffers) check::tensor(name, a.name, a.view, shape, DType::f32, ctx);
  if (step) check::tensor(name, "step", step, {1}, DType::i32, ctx);
  check::tensor(name, "control", control, {StepControl::kCount}, DType::f32, ctx);
  for (const check::Argument* a = buffers.begin(); a != buffers.end(); ++a) {
    for (const check::Argument* b = a + 1; b != buffers.end(); ++b) check::no_overlap(name, *a, {*b});
    check::no_overlap(name, *a, {{"step", step}, {"control", control}});
  }
}

void check_half(const char* name, const ExecContext& ctx, const View& half_param,
                std::initializer_list<check::Argument> others) {
  if (!half_param) return;
  if (half_param.dtype != DType::f16 && half_param.dtype != DType::bf16) {
    throw DtypeError(fmt::format("{}: half_param is {}, expected f16 or bf16", name, dtype_name(half_param.dtype)));
  }
  const check::Argument half{"half_param", half_param};
  check::tensor(name, half.name, half_param, others.begin()->view.shape, half_param.dtype, ctx);
  check::no_overlap(name, half, others);
}

void check_ranges(const char* name, int64_t count, const UpdateRanges& ranges) {
  if (ranges == nullptr) return;
  int64_t at = 0;
  for (const UpdateRange& range : *ranges) {
    if (range.begin != at || range.end < range.begin) {
      throw ShapeError(fmt::format("{}: a range is [{}, {}), expected one that begins at {}, where the one before ends",
                                   name, range.begin, range.end, at));
    }
    at = range.end;
  }
  if (at != count)
    throw ShapeError(fmt::format("{}: the ranges end at {}, expected {}, the length of param", name, at, count));
}

}  // namespace

void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step,
                View control, const UpdateRanges& ranges, View half_param, ConstView values) {
  constexpr const char* kName = "sgd_update";
  if (config.momentum == 0.0) {
    if (config.nesterov)
      throw ConfigError(fmt::format("{}: nesterov is on and momentum is 0, expected a momentum above 0", kName));
    momentum_buffer = {};
    check_update(kName, ctx, {{"param", param}, {"grad", grad}}, step, control);
  } else {
    check_update(kName, ctx, {{"param", param}, {"grad", grad}, {"momentum_buffer", momentum_buffer}}, step, control);
  }
  check_half(
      kName, ctx, half_param,
      {{"param", param}, {"grad", grad}, {"momentum_buffer", momentum_buffer}, {"step", step}, {"control", control}});
  check_ranges(kName, param.numel(), ranges);
  if (values) check::tensor(kName, "values", values, {StepValues::kCount}, DType::i32, ctx);
  run(ctx,
      {kName, {param, grad, momentum_buffer, control, values}, {param, momentum_buffer, step, control, half_param}},
      cpu::sgd_update, VITRINE_IF_CUDA(cuda::sgd_update), config, param, grad, momentum_buffer, step, control, ranges,
      half_param, values);
}

void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq,
                 View step, View control, const UpdateRanges& ranges, View half_param, ConstView values) {
  constexpr const char* kName = "adam_update";
  check_update(kName, ctx, {{"param", param}, {"grad", grad}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}}, step,
               control);
  check_half(kName, ctx, half_param,
             {{"param", param},
              {"grad", grad},
              {"exp_avg", exp_avg},
              {"exp_avg_sq", exp_avg_sq},
              {"step", step},
              {"control", control}});
  check_ranges(kName, param.numel(), ranges);
  if (values) check::tensor(kName, "values", values, {StepValues::kCount}, DType::i32, ctx);
  run(ctx,
      {kName,
       {param, grad, exp_avg, exp_avg_sq, control, values},
       {param, exp_avg, exp_avg_sq, step, control, half_param}},
      cpu::adam_update, VITRINE_IF_CUDA(cuda::adam_update), config, param, grad, exp_avg, exp_avg_sq, step, control,
      ranges, half_param, values);
}

}  // namespace vitrine
