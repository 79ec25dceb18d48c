// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/ranges.h>

#include "runtime/error.h"
#include "tools/program/flags/options.h"
#include "tools/program/flags/setting.h"

namespace vitrine::tools {

namespace {

using Kind = LrScheduleConfig::Kind;

struct Name {
  const char* name;
  Kind kind;
};
constexpr Name kNames[] = {{"constant", Kind::constant},     {"step", Kind::step},
                           {"multi-step", Kind::multi_step}, {"cosine", Kind::cosine},
                           {"one-cycle", Kind::one_cycle},   {"plateau", Kind::plateau}};

Kind kind_of(const std::string& name) {
  for (const Name& entry : kNames) {
    if (name == entry.name) return entry.kind;
  }
  throw ConfigError("--lr-schedule " + name + ": unknown schedule");
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Name& entry : kNames) names.emplace_back(entry.name);
  return names;
}

LrScheduleConfig resolve_schedule(const ScheduleOptions& o, int64_t total_steps, bool evaluates_epochs) {
  Options given, defaults;
  given.schedule = o;
  for (const SettingRow& row : setting_table()) {
    const std::vector<std::string>& schedules = row.owner.values;
    if (row.owner.name != "lr-schedule" || std::ranges::find(schedules, o.schedule) != schedules.end()) continue;
    if (row.field.json(given) == row.field.json(defaults)) continue;
    throw ConfigError(
        fmt::format("{} belongs to --lr-schedule {}, got --lr-schedule {}; omit it, or choose that schedule", row.flag,
                    fmt::join(schedules, " or "), o.schedule));
  }
  if (o.warmup_factor && o.warmup_steps == 0)
    throw ConfigError("--warmup-factor has no effect without warm-up; give --warmup-steps, or omit it");

  LrScheduleConfig config;
  config.kind = kind_of(o.schedule);
  if (!std::ranges::is_sorted(o.milestones)) {
    throw ConfigError(
        fmt::format("--lr-milestones {}: expected epochs in ascending order", fmt::join(o.milestones, ",")));
  }
  if (config.kind == Kind::multi_step && o.milestones.empty()) {
    throw ConfigError(
        "--lr-schedule multi-step: expected the epochs of the decays; give them, for example --lr-milestones 30,60,80");
  }
  if (config.kind == Kind::plateau && !evaluates_epochs && o.metric != "last-batch") {
    throw ConfigError(
        "--lr-schedule plateau watches the test set after each epoch; give --epochs instead of --steps, and no "
        "--no-eval");
  }
  if (o.warmup_steps >= total_steps && o.warmup_steps > 0) {
    throw ConfigError(fmt::format("--warmup-steps {}: the run has {} steps; expected fewer steps of warm-up",
                                  o.warmup_steps, total_steps));
  }
  const bool by_step = config.kind == Kind::cosine || config.kind == Kind::one_cycle;
  config.unit = by_step ? LrScheduleConfig::Unit::step : LrScheduleConfig::Unit::epoch;
  if (by_step) config.total = total_steps - o.warmup_steps;
  config.step_size = o.step_size.value_or(config.step_size);
  config.milestones = o.milestones;
  config.gamma = o.gamma.value_or(config.gamma);
  config.min_lr = o.min_lr.value_or(config.min_lr);
  config.plateau.maximize = o.metric == "accuracy";
  config.plateau.patience = o.patience.value_or(config.plateau.patience);
  config.plateau.factor = o.factor.value_or(config.plateau.factor);
  config.plateau.threshold = o.threshold.value_or(config.plateau.threshold);
  config.plateau.cooldown = o.cooldown.value_or(config.plateau.cooldown);
  config.plateau.eps = o.eps.value_or(config.plateau.eps);
  config.warmup_steps = o.warmup_steps;
  config.warmup_start_factor = o.warmup_factor.value_or(config.warmup_start_factor);
  return config;
}

std::string describe_schedule(const ScheduleOptions& o) {
  std::string text = o.schedule == "constant" ? "" : fmt::format(", schedule {}", o.schedule);
  if (o.warmup_steps > 0) text += fmt::format(", warm-up of {} steps", o.warmup_steps);
  return text;
}

}  // namespace vitrine::tools
