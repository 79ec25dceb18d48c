// SPDX-License-Identifier: Apache-2.0
#include "nn/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {

namespace {

using Kind = LrScheduleConfig::Kind;

void require(bool holds, const char* field, const char* expected, double actual) {
  if (!holds)
    throw ConfigError(fmt::format("learning-rate schedule: expected {} {}, got {:g}", field, expected, actual));
}

void check(const LrScheduleConfig& c, double lr, int64_t steps_per_epoch) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  require(std::isfinite(lr) && lr >= 0.0, "lr", "to be finite and at least 0", lr);
  require(steps_per_epoch >= 1, "steps_per_epoch", "to be at least 1", number(steps_per_epoch));
  require(c.warmup_steps >= 0, "warmup_steps", "to be at least 0", number(c.warmup_steps));
  require(c.warmup_start_factor > 0.0 && c.warmup_start_factor <= 1.0, "warmup_start_factor", "above 0 and at most 1",
          c.warmup_start_factor);
  require(std::isfinite(c.gamma) && c.gamma > 0.0, "gamma", "to be finite and above 0", c.gamma);
  require(std::isfinite(c.min_lr) && c.min_lr >= 0.0, "min_lr", "to be finite and at least 0", c.min_lr);
  if (c.kind == Kind::step) require(c.step_size >= 1, "step_size", "to be at least 1", number(c.step_size));
  if (c.kind == Kind::cosine || c.kind == Kind::one_cycle)
    require(c.total >= 1, "total", "to be at least 1", number(c.total));
  for (size_t i = 0; c.kind == Kind::multi_step && i < c.milestones.size(); ++i) {
    require(c.milestones[i] >= (i == 0 ? 1 : c.milestones[i - 1]), "milestones", "to ascend from at least 1",
            number(c.milestones[i]));
  }
  if (c.kind == Kind::one_cycle) {
    const LrScheduleConfig::OneCycle& o = c.one_cycle;
    require(o.start_fraction >= 0.0 && o.start_fraction <= 1.0, "start_fraction", "between 0 and 1", o.start_fraction);
    require(o.initial_divisor > 0.0, "initial_divisor", "above 0", o.initial_divisor);
    require(o.final_divisor > 0.0, "final_divisor", "above 0", o.final_divisor);
    require(o.base_momentum >= 0.0 && o.base_momentum < 1.0, "base_momentum", "at least 0 and below 1",
            o.base_momentum);
    require(o.max_momentum >= 0.0 && o.max_momentum < 1.0, "max_momentum", "at least 0 and below 1", o.max_momentum);
  }
  if (c.kind == Kind::plateau) {
    require(c.plateau.factor > 0.0 && c.plateau.factor < 1.0, "factor", "above 0 and below 1", c.plateau.factor);
    require(c.plateau.patience >= 0, "patience", "to be at least 0", number(c.plateau.patience));
    require(c.plateau.cooldown >= 0, "cooldown", "to be at least 0", number(c.plateau.cooldown));
    require(c.plateau.eps >= 0.0, "eps", "to be at least 0", c.plateau.eps);
    require(c.plateau.threshold >= 0.0, "threshold", "to be at least 0", c.plateau.threshold);
  }
}

double cosine_between(double from, double to, double fraction) {
  return to + (from - to) / 2.0 * (1.0 + std::cos(std::numbers::pi * fraction));
}

}  // namespace

LrSchedule::LrSchedule(const LrScheduleConfig& config, double lr, int64_t steps_per_epoch)
    : config_(config), lr_(lr), steps_per_epoch_(steps_per_epoch) {
  check(config_, lr_, steps_per_epoch_);
  if (config_.kind == Kind::one_cycle) config_.unit = LrScheduleConfig::Unit::step;
  state_.plateau_lr = lr_;
}

ScheduledValues LrSchedule::at(int64_t step) const {
  const double warmup = step >= config_.warmup_steps
                            ? 1.0
                            : config_.warmup_start_factor + (1.0 - config_.warmup_start_factor) *
                                                                static_cast<double>(step) /
                                                                static_cast<double>(config_.warmup_steps);
  if (config_.kind != Kind::one_cycle) return {scheduled(step) * warmup, {}};
  ScheduledValues values = one_cycle(std::clamp<int64_t>(step - config_.warmup_steps, 0, config_.total - 1));
  // A cycle of so few steps that it begins with its fall does not begin with this rate.
  if (step < config_.warmup_steps) values.lr = lr_ / config_.one_cycle.initial_divisor * warmup;
  return values;
}

/// Without warm-up.
double LrSchedule::scheduled(int64_t step) const {
  const int64_t after_warmup = std::max<int64_t>(step - config_.warmup_steps, 0);
  const int64_t tick = config_.unit == LrScheduleConfig::Unit::epoch ? after_warmup / steps_per_epoch_ : after_warmup;
  switch (config_.kind) {
    case Kind::step: {
      const int64_t reductions = tick / config_.step_size;
      return lr_ * std::pow(config_.gamma, static_cast<double>(reductions));
    }
    case Kind::multi_step: {
      const auto reached =
          std::upper_bound(config_.milestones.begin(), config_.milestones.end(), tick) - config_.milestones.begin();
      return lr_ * std::pow(config_.gamma, static_cast<double>(reached));
    }
    case Kind::cosine:
      return cosine_between(lr_, config_.min_lr,
                            static_cast<double>(std::min(tick, config_.total)) / static_cast<double>(config_.total));
    case Kind::plateau:
      return state_.plateau_lr;
    case Kind::constant:
    case Kind::one_cycle:
      break;
  }
  return lr_;
}

ScheduledValues LrSchedule::one_cycle(int64_t tick) const {
  const LrScheduleConfig::OneCycle& o = config_.one_cycle;
  const double initial = lr_ / o.initial_divisor, last = initial / o.final_divisor;
  const double peak = o.start_fraction * static_cast<double>(config_.total) - 1.0,
               end = static_cast<double>(config_.total) - 1.0;
  const auto now = static_cast<double>(tick);
  const bool rises = now <= peak;
  const double length = rises ? peak : end - peak;
  const double fraction = length <= 0.0 ? 1.0 : (rises ? now : now - peak) / length;
  ScheduledValues values{rises ? cosine_between(initial, lr_, fraction) : cosine_between(lr_, last, fraction), {}};
  if (o.cycle_momentum) {
    values.momentum = rises ? cosine_between(o.max_momentum, o.base_momentum, fraction)
                            : cosine_between(o.base_momentum, o.max_momentum, fraction);
  }
  return values;
}

void LrSchedule::end_epoch(double metric) {
  if (config_.kind != Kind::plateau) return;
  const LrScheduleConfig::Plateau& p = config_.plateau;
  const bool better =
      !std::isnan(metric) && (!state_.has_best || (p.maximize ? metric > state_.best * (1.0 + p.threshold)
                                                              : metric < state_.best * (1.0 - p.threshold)));
  if (better) {
    state_.best = metric;
    state_.has_best = true;
    state_.bad_epochs = 0;
  } else {
    ++state_.bad_epochs;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.bad_epochs = 0;
  }
  if (state_.bad_epochs <= p.patience) return;
  const double lowered = std::max(state_.plateau_lr * p.factor, config_.min_lr);
  if (state_.plateau_lr - lowered > p.eps) state_.plateau_lr = lowered;
  state_.cooldown_left = p.cooldown;
  state_.bad_epochs = 0;
}

}  // namespace vitrine
