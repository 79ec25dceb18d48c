// SPDX-License-Identifier: Apache-2.0
#include "nn/loss_scaler.h"

#include <array>

#include <fmt/format.h>

#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {

namespace {

void validate(const LossScaling& scaling) {
  if (!scaling.active()) return;
  if (!(scaling.scale >= 0x1p-126 && scaling.scale <= 0x1p126)) {
    throw ConfigError(fmt::format(
        "loss scale: got {}, expected 1e-37 to 1e37: f32 must represent the scale and its reciprocal", scaling.scale));
  }
  if (scaling.kind != LossScaling::Kind::dynamic) return;
  const LossScaleConfig& c = scaling.constants;
  if (!(c.growth_factor > 1.0)) {
    throw ConfigError(fmt::format(
        "loss scale: growth_factor is {}, expected a number above 1, such as 2; for a constant scale use Kind::fixed",
        c.growth_factor));
  }
  if (!(c.backoff_factor > 0.0 && c.backoff_factor < 1.0)) {
    throw ConfigError(fmt::format(
        "loss scale: backoff_factor is {}, expected a number above 0 and below 1, such as 0.5", c.backoff_factor));
  }
  if (c.growth_interval < 1) {
    throw ConfigError(
        fmt::format("loss scale: growth_interval is {} steps, expected 1 or more, such as 2000", c.growth_interval));
  }
}

}  // namespace

LossScaler::LossScaler(ExecContext& ctx, const LossScaling& scaling) : scaling_(scaling) {
  validate(scaling);
  control_ = ctx.allocate({StepControl::kCount}, DType::f32, Category::optimizer, "step control");
  zero(ctx, control_);
  if (!scaling.active()) return;
  state_ = ctx.allocate({LossScaleState::kCount}, DType::f32, Category::optimizer, "loss scale");
  set_state(ctx, static_cast<float>(scaling.scale), 0);
}

View LossScaler::scale() const { return state_ ? state_.view().rows(0, 1) : View(); }

void LossScaler::set_state(ExecContext& ctx, float scale, int32_t growth_tracker) {
  if (!state_)
    throw OrderError(
        "LossScaler: set_state: losses are not scaled; construct the scaler with a fixed or dynamic scale");
  const std::array<float, LossScaleState::kCount> values = {scale, static_cast<float>(growth_tracker)};
  copy(ctx, ConstView(values.data(), state_.shape(), DType::f32, DeviceId::host()), state_);
  if (ctx.backend() != Backend::meta) ctx.stream().synchronize();
}

void LossScaler::decide_step(ExecContext& ctx, double nominal, ConstView gradients, ConstView totals,
                             NonFinite non_finite, const UpdateCount& count, const SquaredElements& squared) {
  if (stage_ != Stage::summed)
    throw OrderError("LossScaler: decide_step was called twice in one step; call step first");
  if (non_finite == NonFinite::accept && scaling_.active()) non_finite = NonFinite::skip;
  checked_ = non_finite != NonFinite::accept;
  LossScale scale;
  if (state_) scale.state = state_.view();
  if (state_ && scaling_.kind == LossScaling::Kind::dynamic) scale.dynamic = scaling_.constants;
  const PhaseScope phase(ctx, Phase::decide);
  if (checked_) {
    check_and_decide_step(ctx, nominal, non_finite, gradients, totals, scale, control_, count, squared);
  } else {
    vitrine::decide_step(ctx, nominal, non_finite, totals, scale, control_, count);
  }
  stage_ = Stage::decided;
}

void LossScaler::resume(ExecContext& ctx) {
  zero(ctx, control_.rows(StepControl::kStopped, StepControl::kStopped + 1));
}

void LossScaler::clip_gradients(ExecContext& ctx, double max_norm) {
  if (stage_ == Stage::summed) {
    throw OrderError(
        "LossScaler: clip_gradients before decide_step, which measures the norm of the mean gradient; call decide_step "
        "first");
  }
  if (stage_ != Stage::decided)
    throw OrderError("LossScaler: clip_gradients may be called once, between decide_step and step");
  if (!checked_) {
    throw OrderError(
        "LossScaler: clip_gradients needs the norm, which decide_step did not measure; pass it NonFinite::skip or "
        "NonFinite::stop");
  }
  const PhaseScope phase(ctx, Phase::decide);
  vitrine::clip_gradients(ctx, max_norm, control_);
  stage_ = Stage::clipped;
}

View LossScaler::step() {
  if (stage_ == Stage::summed)
    throw OrderError("LossScaler: step before decide_step; call decide_step after the reduction, before each step");
  stage_ = Stage::summed;
  return control_;
}

}  // namespace vitrine
