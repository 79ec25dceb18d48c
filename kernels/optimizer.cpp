// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer.h"

#include <atomic>
#include <cmath>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/run.h"
#include "kernels/step_control.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kGrain = 16384;

/// Increments the step count and sets `factor`, by which the summed gradient is multiplied; false when the step is not taken.
bool begin_update(const View& step, const View& control, float& factor) {
  if (control.as<float>()[StepControl::kActive] != 1.0F) return false;
  factor = control.as<float>()[StepControl::kFactor];
  *step.as<int32_t>() += 1;
  return true;
}

bool is_finite(float value) { return value - value == 0.0F; }

/// Runs update(begin, end) over all elements. It returns how many elements kept their values because the new ones were not finite.
template <class Update>
void update_elements(int64_t count, const View& control, const Update& update) {
  std::atomic<bool> any_kept{false};
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    if (update(begin, end) > 0) any_kept.store(true, std::memory_order_relaxed);
  });
  if (any_kept.load(std::memory_order_relaxed)) control.as<float>()[StepControl::kStopped] = StepControl::kByUpdate;
}

/// Calls update(range, config) for each range, with the constants of the range.
template <class Config, class Update>
void for_each_range(const Config& config, int64_t count, const UpdateRanges& ranges, const Update& update) {
  if (ranges == nullptr) return update(UpdateRange{0, count}, config);
  for (const UpdateRange& range : *ranges) {
    Config of_range = config;
    of_range.lr = config.lr * range.lr_factor;
    of_range.weight_decay = range.weight_decay;
    update(range, of_range);
  }
}

void update_sgd_range(const SgdConfig& config, const UpdateRange& range, View param, ConstView grad, View momentum_buffer, View control, bool first,
                      float factor) {
  const bool guards = control.as<float>()[StepControl::kKeepsFinite] == 1.0F;
  const auto lr = static_cast<float>(config.lr);
  const auto momentum = static_cast<float>(config.momentum);
  const auto weight_decay = static_cast<float>(config.weight_decay);
  const int64_t count = range.end - range.begin;
  float* p = param.as<float>() + range.begin;
  const float* g = grad.as<float>() + range.begin;
  float* buffer = momentum_buffer.as<float>();

  if (buffer == nullptr) {
    update_elements(count, control, [=](int64_t begin, int64_t end) {
      int kept = 0;
#pragma omp simd reduction(+ : kept)
      for (int64_t i = begin; i < end; ++i) {
        const float next = p[i] - lr * (g[i] * factor + weight_decay * p[i]);
        const bool keeps = guards & !is_finite(next);
        p[i] = keeps ? p[i] : next;
        kept += keeps ? 1 : 0;
      }
      return kept;
    });
    return;
  }
  buffer += range.begin;
  const float keep = first ? 0.0F : momentum;
  const bool nesterov = config.nesterov;
  update_elements(count, control, [=](int64_t begin, int64_t end) {
    // The first update must not read the buffer, whose content is undefined.
    if (first) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) buffer[i] = 0.0F;
    }
    int kept = 0;
#pragma omp simd reduction(+ : kept)
    for (int64_t i = begin; i < end; ++i) {
      const float update = g[i] * factor + weight_decay * p[i];
      const float b = keep * buffer[i] + update;
      const float next = p[i] - lr * (nesterov ? update + momentum * b : b);
      const bool keeps = guards & !(is_finite(next) & is_finite(b));
      buffer[i] = keeps ? buffer[i] : b;
      p[i] = keeps ? p[i] : next;
      kept += keeps ? 1 : 0;
    }
    return kept;
  });
}

void sgd_update(ExecContext&, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step, View control,
                const UpdateRanges& ranges) {
  float factor = 1.0F;
  if (!begin_update(step, control, factor)) return;
  const bool first = *step.as<int32_t>() == 1;
  for_each_range(config, param.numel(), ranges, [&](const UpdateRange& range, const SgdConfig& of_range) {
    update_sgd_range(of_range, range, param, grad, momentum_buffer, control, first, factor);
  });
}

void update_adam_range(const AdamConfig& config, const UpdateRange& range, View param, ConstView grad, View exp_avg, View exp_avg_sq, View control,
                       double t, float factor) {
  const bool guards = control.as<float>()[StepControl::kKeepsFinite] == 1.0F;
  const auto step_size = static_cast<float>(config.lr / (1.0 - std::pow(config.beta1, t)));
  const auto correction = static_cast<float>(std::sqrt(1.0 - std::pow(config.beta2, t)));
  const auto beta1 = static_cast<float>(config.beta1);
  const auto beta2 = static_cast<float>(config.beta2);
  const auto rest1 = static_cast<float>(1.0 - config.beta1);
  const auto rest2 = static_cast<float>(1.0 - config.beta2);
  const auto eps = static_cast<float>(config.eps);
  // One of the two has no effect: weight decay changes the gradient (Adam) or the parameter (AdamW).
  const auto coupled = static_cast<float>(config.decoupled ? 0.0 : config.weight_decay);
  const auto shrink = static_cast<float>(config.decoupled ? 1.0 - config.lr * config.weight_decay : 1.0);
  float* p = param.as<float>() + range.begin;
  const float* g = grad.as<float>() + range.begin;
  float* m = exp_avg.as<float>() + range.begin;
  float* v = exp_avg_sq.as<float>() + range.begin;

  update_elements(range.end - range.begin, control, [=](int64_t begin, int64_t end) {
    int kept = 0;
#pragma omp simd reduction(+ : kept)
    for (int64_t i = begin; i < end; ++i) {
      const float decayed = p[i] * shrink;
      const float gradient = g[i] * factor + coupled * decayed;
      const float mean = beta1 * m[i] + rest1 * gradient;
      const float square = beta2 * v[i] + rest2 * gradient * gradient;
      const float next = decayed - step_size * mean / (std::sqrt(square) / correction + eps);
      const bool keeps = guards & !(is_finite(next) & is_finite(mean) & is_finite(square));
      m[i] = keeps ? m[i] : mean;
      v[i] = keeps ? v[i] : square;
      p[i] = keeps ? p[i] : next;
      kept += keeps ? 1 : 0;
    }
    return kept;
  });
}

void adam_update(ExecContext&, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq, View step, View control,
                 const UpdateRanges& ranges) {
  float factor = 1.0F;
  if (!begin_update(step, control, factor)) return;
  const auto t = static_cast<double>(*step.as<int32_t>());
  for_each_range(config, param.numel(), ranges, [&](const UpdateRange& range, const AdamConfig& of_range) {
    update_adam_range(of_range, range, param, grad, exp_avg, exp_avg_sq, control, t, factor);
  });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // optimizer.cu
void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step, View control,
                const UpdateRanges& ranges);
void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq, View step, View control,
                 const UpdateRanges& ranges);
}  // namespace cuda

namespace {

/// throws unless the buffers have equal lengths and share no memory, and step and control fit.
void check_update(const char* name, const ExecContext& ctx, std::initializer_list<check::Argument> buffers, const ConstView& step,
                  const ConstView& control) {
  check::rank(name, "param", buffers.begin()->view, 1, "(n)");
  const Shape& shape = buffers.begin()->view.shape;
  for (const check::Argument& a : buffers) check::tensor(name, a.name, a.view, shape, DType::f32, ctx);
  check::tensor(name, "step", step, {1}, DType::i32, ctx);
  check::tensor(name, "control", control, {StepControl::kCount}, DType::f32, ctx);
  for (const check::Argument* a = buffers.begin(); a != buffers.end(); ++a) {
    for (const check::Argument* b = a + 1; b != buffers.end(); ++b) check::no_overlap(name, *a, {*b});
    check::no_overlap(name, *a, {{"step", step}, {"control", control}});
  }
}

void check_ranges(const char* name, int64_t count, const UpdateRanges& ranges) {
  if (ranges == nullptr) return;
  int64_t at = 0;
  for (const UpdateRange& range : *ranges) {
    if (range.begin != at || range.end < range.begin) {
      throw ShapeError(
          fmt::format("{}: a range is [{}, {}), expected one that begins at {}, where the one before ends", name, range.begin, range.end, at));
    }
    at = range.end;
  }
  if (at != count) throw ShapeError(fmt::format("{}: the ranges end at {}, expected {}, the length of param", name, at, count));
}

}  // namespace

void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step, View control,
                const UpdateRanges& ranges) {
  constexpr const char* kName = "sgd_update";
  if (config.momentum == 0.0) {
    if (config.nesterov) throw ConfigError(fmt::format("{}: nesterov is on and momentum is 0, expected a momentum above 0", kName));
    momentum_buffer = {};
    check_update(kName, ctx, {{"param", param}, {"grad", grad}}, step, control);
  } else {
    check_update(kName, ctx, {{"param", param}, {"grad", grad}, {"momentum_buffer", momentum_buffer}}, step, control);
  }
  check_ranges(kName, param.numel(), ranges);
  run(ctx, {kName, {grad, control}, {param, momentum_buffer, step, control}}, cpu::sgd_update, VITRINE_IF_CUDA(cuda::sgd_update), config, param, grad,
      momentum_buffer, step, control, ranges);
}

void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq, View step, View control,
                 const UpdateRanges& ranges) {
  constexpr const char* kName = "adam_update";
  check_update(kName, ctx, {{"param", param}, {"grad", grad}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}}, step, control);
  check_ranges(kName, param.numel(), ranges);
  run(ctx, {kName, {grad, control}, {param, exp_avg, exp_avg_sq, step, control}}, cpu::adam_update, VITRINE_IF_CUDA(cuda::adam_update), config, param,
      grad, exp_avg, exp_avg_sq, step, control, ranges);
}

}  // namespace vitrine
