// SPDX-License-Identifier: Apache-2.0
#include "kernels/step_control.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cross_entropy.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/sum_of_squares.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {
namespace {

// The number of parts does not depend on the number of threads, so that the order of the sum is fixed.
constexpr int64_t kParts = 256;
constexpr int64_t kGrainElements = 16384;

float* at(const View& control, int64_t index) { return control.as<float>() + index; }

/// The first element of [first, end) that is not finite; the last one if all are.
int64_t find_non_finite(const float* values, int64_t first, int64_t end) {
  while (first + 1 < end && std::isfinite(values[first])) ++first;
  return first;
}

void check_rest(ConstView grad, const SquaredElements& squared, View control) {
  const int64_t begin = squared.elements, count = grad.numel() - begin;
  // Declared is the rest. The squared elements were ready before their squares, and are read only if these are not
  // finite.
  const float* const g = grad.rows(begin, grad.numel()).as<float>() - begin;
  const int64_t part_elements = std::max<int64_t>(1, (count + kParts - 1) / kParts);
  const int64_t parts = (count + part_elements - 1) / part_elements;
  std::array<double, kParts> sums{};
  parallel_for(parts, std::max<int64_t>(1, kGrainElements / part_elements), [&](int64_t first_part, int64_t end) {
    for (int64_t part = first_part; part < end; ++part) {
      const int64_t first = part * part_elements;
      sums[static_cast<size_t>(part)] = sum_of_squares(g + begin + first, std::min(part_elements, count - first));
    }
  });
  double total = 0.0;
  int64_t first = -1;
  const auto* const tiles = static_cast<const double*>(squared.squares.data);
  for (int64_t tile = 0; begin > 0 && tile < squared.squares.shape[0]; ++tile) total += tiles[tile];
  // Squares of finite floats do not overflow a double: if a sum is not finite, neither is one of its elements.
  if (!std::isfinite(total)) first = find_non_finite(g, 0, begin);
  for (int64_t part = 0; part < parts; ++part) {
    const double sum = sums[static_cast<size_t>(part)];
    total += sum;
    if (first < 0 && !std::isfinite(sum)) first = find_non_finite(g, begin + part * part_elements, grad.numel());
  }
  *at(control, StepControl::kNorm) = static_cast<float>(std::sqrt(total));
  *at(control, StepControl::kFirstNonFinite) =
      std::bit_cast<float>(first < 0 ? -1 : static_cast<int32_t>(first % (int64_t{1} << 30)));
  *at(control, StepControl::kFirstNonFiniteHigh) =
      std::bit_cast<float>(first < 0 ? 0 : static_cast<int32_t>(first >> 30));
}

void check_gradients(ExecContext&, ConstView grad, View control) { check_rest(grad, {}, control); }

void sum_squares(ExecContext&, ConstView grad, View squares) {
  const float* g = grad.as<float>();
  auto* const sums = static_cast<double*>(squares.data);
  parallel_for(square_tiles(grad.numel()), kGrainElements / kSquareTile, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      sums[tile] = sum_of_squares(g + tile * kSquareTile, std::min(kSquareTile, grad.numel() - tile * kSquareTile));
    }
  });
}

void begin_update(const UpdateCount& count, const View& control) {
  const int32_t update = *count.step.as<int32_t>() += 1;
  *at(control, StepControl::kUpdate) = std::bit_cast<float>(update);
  *at(control, StepControl::kStepSize) = static_cast<float>(count.lr / (1.0 - std::pow(count.beta1, update)));
  *at(control, StepControl::kCorrection) = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(count.beta2, update)));
}

void adapt(const LossScaleConfig& config, bool taken, bool skipped, const View& state) {
  float& scale = *at(state, LossScaleState::kScale);
  float& tracker = *at(state, LossScaleState::kGrowthTracker);
  if (skipped) {
    scale *= static_cast<float>(config.backoff_factor);
    tracker = 0.0F;
  }
  if (!taken || ++tracker < static_cast<float>(config.growth_interval)) return;
  const float grown = scale * static_cast<float>(config.growth_factor);
  if (std::isfinite(grown)) scale = grown;
  tracker = 0.0F;
}

void decide_step(ExecContext&, double nominal, NonFinite non_finite, ConstView totals, const LossScale& loss_scale,
                 View control, const UpdateCount& count) {
  const auto& [state, dynamic] = loss_scale;
  const double valid = LossTotals::count(totals.as<float>(), LossTotals::kValid);
  const float scale = state ? state.as<float>()[LossScaleState::kScale] : 1.0F;
  const bool any_target = valid > 0.0;
  const float factor = any_target ? static_cast<float>(nominal / valid) / scale : 0.0F;
  if (non_finite == NonFinite::accept) {
    *at(control, StepControl::kNorm) = std::numeric_limits<float>::quiet_NaN();
    *at(control, StepControl::kFirstNonFinite) = std::bit_cast<float>(int32_t{-1});
  }
  const bool stops = non_finite == NonFinite::stop;
  const bool finite_loss = !stops || std::isfinite(totals.as<float>()[LossTotals::kLossSum]);
  const bool finite_gradient = std::bit_cast<int32_t>(*at(control, StepControl::kFirstNonFinite)) < 0;
  float& stopped = *at(control, StepControl::kStopped);
  const bool counts =
      any_target && stopped == 0.0F;  // otherwise there is no target, or an earlier step stopped training
  const bool finite = finite_loss && finite_gradient;
  *at(control, StepControl::kFactor) = factor;
  *at(control, StepControl::kActive) = counts && finite ? 1.0F : 0.0F;
  *at(control, StepControl::kSkipped) = counts && !finite ? 1.0F : 0.0F;
  *at(control, StepControl::kNorm) *= factor;
  *at(control, StepControl::kLossScale) = scale;
  *at(control, StepControl::kKeepsFinite) = stops ? 1.0F : 0.0F;
  if (count.step && counts && finite) begin_update(count, control);
  if (dynamic) adapt(*dynamic, counts && finite, counts && !finite, state);
  if (!stops || !counts) return;
  if (!finite_loss) {
    stopped = StepControl::kByLoss;
  } else if (!finite_gradient && !state) {
    stopped = StepControl::kByGradient;
  }
}

void check_and_decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView grad, ConstView totals,
                           const LossScale& scale, View control, const UpdateCount& count,
                           const SquaredElements& squared) {
  check_rest(grad, squared, control);
  cpu::decide_step(ctx, nominal, non_finite, totals, scale, control, count);
}

void clip_gradients(ExecContext&, double max_norm, View control) {
  const double clip = max_norm / (static_cast<double>(*at(control, StepControl::kNorm)) + 1e-6);
  if (clip < 1.0) *at(control, StepControl::kFactor) *= static_cast<float>(clip);
}

}  // namespace
}  // namespace cpu

namespace cuda {  // step_control.cu
void check_gradients(ExecContext& ctx, ConstView grad, View control);
void sum_squares(ExecContext& ctx, ConstView grad, View squares);
void decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView totals, const LossScale& scale,
                 View control, const UpdateCount& count);
void check_and_decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView grad, ConstView totals,
                           const LossScale& scale, View control, const UpdateCount& count,
                           const SquaredElements& squared);
void clip_gradients(ExecContext& ctx, double max_norm, View control);
}  // namespace cuda

namespace {

void check_gradient(const char* name, const ExecContext& ctx, const ConstView& grad, const View& control) {
  check::rank(name, "grad", grad, 1, "(n)");
  check::tensor(name, "grad", grad, DType::f32, ctx);
  check::tensor(name, "control", control, {StepControl::kCount}, DType::f32, ctx);
  check::no_overlap(name, {"control", control}, {{"grad", grad}});
}

void check_decision(const char* name, const ExecContext& ctx, const ConstView& totals, const LossScale& scale,
                    const View& control, const UpdateCount& count) {
  const View& state = scale.state;
  check::tensor(name, "totals", totals, {LossTotals::kCount}, DType::f32, ctx);
  if (state || scale.dynamic) check::tensor(name, "state", state, {LossScaleState::kCount}, DType::f32, ctx);
  check::tensor(name, "control", control, {StepControl::kCount}, DType::f32, ctx);
  if (count.step) check::tensor(name, "step", count.step, {1}, DType::i32, ctx);
  if (count.values) check::tensor(name, "values", count.values, {StepValues::kCount}, DType::i32, ctx);
  check::no_overlap(name, {"control", control},
                    {{"totals", totals}, {"state", state}, {"step", count.step}, {"values", count.values}});
  check::no_overlap(name, {"state", state}, {{"totals", totals}});
}
/// What decide_step() writes of the loss scale.
View adapted(const LossScale& scale) { return scale.dynamic ? scale.state : View(); }

}  // namespace

void check_gradients(ExecContext& ctx, ConstView grad, View control) {
  constexpr const char* kName = "check_gradients";
  check_gradient(kName, ctx, grad, control);
  run(ctx, {kName, {grad}, {control}}, cpu::check_gradients, VITRINE_IF_CUDA(cuda::check_gradients), grad, control);
}

void sum_squares(ExecContext& ctx, ConstView grad, View squares) {
  constexpr const char* kName = "sum_squares";
  check::rank(kName, "grad", grad, 1, "(n)");
  check::tensor(kName, "grad", grad, DType::f32, ctx);
  if (grad.numel() == 0) throw ShapeError(fmt::format("{}: grad has no elements, expected at least 1", kName));
  check::tensor(kName, "squares", squares, {square_tiles(grad.numel()), 2}, DType::i32, ctx);
  check::no_overlap(kName, {"squares", squares}, {{"grad", grad}});
  run(ctx, {kName, {grad}, {squares}}, cpu::sum_squares, VITRINE_IF_CUDA(cuda::sum_squares), grad, squares);
}

void decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView totals, const LossScale& scale,
                 View control, const UpdateCount& count) {
  constexpr const char* kName = "decide_step";
  check_decision(kName, ctx, totals, scale, control, count);
  run(ctx, {kName, {totals, scale.state, control, count.values}, {control, count.step, adapted(scale)}},
      cpu::decide_step, VITRINE_IF_CUDA(cuda::decide_step), nominal, non_finite, totals, scale, control, count);
}

void check_and_decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView grad, ConstView totals,
                           const LossScale& scale, View control, const UpdateCount& count,
                           const SquaredElements& squared) {
  constexpr const char* kName = "check_and_decide_step";
  check_gradient(kName, ctx, grad, control);
  check_decision(kName, ctx, totals, scale, control, count);
  if (squared.elements < 0 || squared.elements > grad.numel()) {
    throw ShapeError(
        fmt::format("{}: {} of the gradient's {} elements are squared", kName, squared.elements, grad.numel()));
  }
  if (squared.elements > 0) {
    check::rank(kName, "squares", squared.squares, 2, "(tiles, 2)");
    check::tensor(kName, "squares", squared.squares, {squared.squares.shape[0], 2}, DType::i32, ctx);
    check::no_overlap(kName, {"control", control}, {{"squares", squared.squares}});
  }
  const ConstView rest = grad.rows(squared.elements, grad.numel());
  run(ctx, {kName, {rest, squared.squares, totals, scale.state, control}, {control, count.step, adapted(scale)}},
      cpu::check_and_decide_step, VITRINE_IF_CUDA(cuda::check_and_decide_step), nominal, non_finite, grad, totals,
      scale, control, count, squared);
}

void clip_gradients(ExecContext& ctx, double max_norm, View control) {
  constexpr const char* kName = "clip_gradients";
  if (!(max_norm > 0.0))
    throw ConfigError(fmt::format("{}: max_norm is {}, expected a number above 0", kName, max_norm));
  check::tensor(kName, "control", control, {StepControl::kCount}, DType::f32, ctx);
  run(ctx, {kName, {control}, {control}}, cpu::clip_gradients, VITRINE_IF_CUDA(cuda::clip_gradients), max_norm,
      control);
}

}  // namespace vitrine
