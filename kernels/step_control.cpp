// SPDX-License-Identifier: Apache-2.0
#include "kernels/step_control.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/implementations.h"
#include "runtime/error.h"

namespace vitrine {

void check_gradients(ExecContext& ctx, ConstView grad, View control) {
  constexpr const char* kName = "check_gradients";
  check::rank(kName, "grad", grad, 1, "(n)");
  check::tensor(kName, "grad", grad, grad.shape, DType::f32, ctx);
  check::tensor(kName, "control", control, {StepControl::kCount}, DType::f32, ctx);
  check::no_overlap(kName, "control", control, "grad", grad);
  run(ctx, {kName, {grad}, {control}}, VITRINE_IMPLEMENTATIONS(check_gradients), grad, control);
}

void unscale_gradients(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView totals, ConstView state, View control) {
  constexpr const char* kName = "unscale_gradients";
  check::tensor(kName, "totals", totals, {LossTotals::kCount}, DType::f32, ctx);
  if (state) check::tensor(kName, "state", state, {LossScaleState::kCount}, DType::f32, ctx);
  check::tensor(kName, "control", control, {StepControl::kCount}, DType::f32, ctx);
  check::no_overlap(kName, "control", control, "totals", totals);
  check::no_overlap(kName, "control", control, "state", state);
  run(ctx, {kName, {totals, state, control}, {control}}, VITRINE_IMPLEMENTATIONS(unscale_gradients), nominal, non_finite, totals, state, control);
}

void clip_gradients(ExecContext& ctx, double max_norm, View control) {
  constexpr const char* kName = "clip_gradients";
  if (!(max_norm > 0.0)) throw ConfigError(fmt::format("{}: max_norm is {}, expected a number above 0", kName, max_norm));
  check::tensor(kName, "control", control, {StepControl::kCount}, DType::f32, ctx);
  run(ctx, {kName, {control}, {control}}, VITRINE_IMPLEMENTATIONS(clip_gradients), max_norm, control);
}

void update_loss_scale(ExecContext& ctx, const LossScaleConfig& config, ConstView control, View state) {
  constexpr const char* kName = "update_loss_scale";
  check::tensor(kName, "control", control, {StepControl::kCount}, DType::f32, ctx);
  check::tensor(kName, "state", state, {LossScaleState::kCount}, DType::f32, ctx);
  check::no_overlap(kName, "state", state, "control", control);
  run(ctx, {kName, {control, state}, {state}}, VITRINE_IMPLEMENTATIONS(update_loss_scale), config, control, state);
}

}  // namespace vitrine
