// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/schedule_options.h"

#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "tools/program/flags/flag_values.h"
#include "tools/program/text/json_text.h"

namespace vitrine::tools {

namespace {

using Kind = LrScheduleConfig::Kind;
using Json = nlohmann::ordered_json;

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

/// A flag of some schedules only.
struct ScheduleFlag {
  const char* name;
  std::vector<std::string> schedules;
  bool given;
  Json json;             // its value as given
  std::string in_force;  // with the default

  bool belongs_to(const std::string& schedule) const {
    return std::find(schedules.begin(), schedules.end(), schedule) != schedules.end();
  }
};

std::vector<ScheduleFlag> schedule_flags(const ScheduleOptions& o) {
  const LrScheduleConfig defaults;
  std::vector<ScheduleFlag> flags;
  const auto add = [&](const char* name, const auto& value, auto otherwise, std::vector<std::string> schedules) {
    flags.push_back({name, std::move(schedules), value.has_value(), value_or_null(value),
                     fmt::format("{}", value.value_or(otherwise))});
  };
  add("lr-step-size", o.step_size, defaults.step_size, {"step"});
  flags.push_back({"lr-milestones",
                   {"multi-step"},
                   !o.milestones.empty(),
                   o.milestones,
                   fmt::format("{}", fmt::join(o.milestones, ","))});
  add("lr-gamma", o.gamma, defaults.gamma, {"step", "multi-step"});
  add("lr-min", o.min_lr, defaults.min_lr, {"cosine", "plateau"});
  add("lr-patience", o.patience, defaults.plateau.patience, {"plateau"});
  add("lr-factor", o.factor, defaults.plateau.factor, {"plateau"});
  add("lr-threshold", o.threshold, defaults.plateau.threshold, {"plateau"});
  add("lr-cooldown", o.cooldown, defaults.plateau.cooldown, {"plateau"});
  flags.push_back({"lr-metric", {"plateau"}, o.metric != "loss", o.metric, o.metric});
  return flags;
}

}  // namespace

void add_schedule_options(CLI::App& app, ScheduleOptions& o) {
  app.option_defaults()->group("Learning-rate schedule");
  constexpr int64_t kMost = int64_t{1} << 40;
  std::vector<std::string> names;
  for (const Name& entry : kNames) names.emplace_back(entry.name);
  app.add_option("--lr-schedule", o.schedule,
                 "How the learning rate changes, as in torch.optim.lr_scheduler: constant; step and multi-step by "
                 "epochs; cosine and one-cycle over all "
                 "steps of the run; plateau when the test metric stops improving")
      ->check(one_of(names))
      ->capture_default_str();
  app.add_option("--lr-step-size", o.step_size, "Epochs between decays, for step [30]")->check(whole_number(1, kMost));
  app.add_option("--lr-milestones", o.milestones, "Epochs of the decays, for multi-step: 30,60,80")
      ->delimiter(',')
      ->check(whole_number(1, kMost));
  app.add_option("--lr-gamma", o.gamma, "Factor of each decay, for step and multi-step [0.1]")->check(number_above_0());
  app.add_option("--lr-min", o.min_lr, "Lowest learning rate, for cosine and plateau [0]")
      ->check(number_of_at_least_0());
  app.add_option("--lr-patience", o.patience, "Epochs without improvement before a decay, for plateau [10]")
      ->check(whole_number(0, kMost));
  app.add_option("--lr-factor", o.factor, "Factor of each decay, for plateau [0.1]")->check(fraction(false, false));
  app.add_option("--lr-threshold", o.threshold, "Relative change that counts as an improvement, for plateau [0.0001]")
      ->check(number_of_at_least_0());
  app.add_option("--lr-cooldown", o.cooldown,
                 "Epochs after a decay that do not count towards --lr-patience, for plateau [0]")
      ->check(whole_number(0, kMost));
  app.add_option("--lr-metric", o.metric,
                 "What plateau watches after each epoch: loss or accuracy on the test set, or last-batch (training "
                 "loss of the epoch's last batch)")
      ->check(one_of({"loss", "accuracy", "last-batch"}))
      ->capture_default_str();
  app.add_option("--warmup-steps", o.warmup_steps, "Optimizer steps of linear warm-up before any schedule")
      ->check(whole_number(0, kMost))
      ->capture_default_str();
  app.add_option("--warmup-factor", o.warmup_factor,
                 "Share of the schedule's first learning rate at the first step of the warm-up [1/3]")
      ->check(fraction(false, true));
}

LrScheduleConfig resolve_schedule(const ScheduleOptions& o, int64_t total_steps, bool evaluates_epochs) {
  for (const ScheduleFlag& flag : schedule_flags(o)) {
    if (!flag.given || flag.belongs_to(o.schedule)) continue;
    throw ConfigError(
        fmt::format("--{} belongs to --lr-schedule {}, got --lr-schedule {}; omit it, or choose that schedule",
                    flag.name, fmt::join(flag.schedules, " or "), o.schedule));
  }
  if (o.warmup_factor && o.warmup_steps == 0)
    throw ConfigError("--warmup-factor has no effect without warm-up; give --warmup-steps, or omit it");

  LrScheduleConfig config;
  config.kind = kind_of(o.schedule);
  if (!std::is_sorted(o.milestones.begin(), o.milestones.end())) {
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
  config.warmup_steps = o.warmup_steps;
  config.warmup_start_factor = o.warmup_factor.value_or(config.warmup_start_factor);
  return config;
}

Json schedule_json(const ScheduleOptions& o) {
  Json json;
  json["lr_schedule"] = o.schedule;
  for (const ScheduleFlag& flag : schedule_flags(o)) json[json_key(flag.name)] = flag.json;
  json["warmup_steps"] = o.warmup_steps;
  json["warmup_factor"] = value_or_null(o.warmup_factor);
  return json;
}

std::vector<std::pair<const char*, std::string>> schedule_values(const ScheduleOptions& o) {
  std::vector<std::pair<const char*, std::string>> values;
  for (const ScheduleFlag& flag : schedule_flags(o))
    values.emplace_back(flag.name, flag.belongs_to(o.schedule) ? flag.in_force : "");
  return values;
}

std::string describe_schedule(const ScheduleOptions& o) {
  std::string text = o.schedule == "constant" ? "" : fmt::format(", schedule {}", o.schedule);
  if (o.warmup_steps > 0) text += fmt::format(", warm-up of {} steps", o.warmup_steps);
  return text;
}

}  // namespace vitrine::tools
