// SPDX-License-Identifier: Apache-2.0
#include "tools/program/schedule_options.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "tools/program/flag_values.h"

namespace vitrine::tools {

namespace {

using Kind = LrScheduleConfig::Kind;

struct Name {
  const char* name;
  Kind kind;
};
constexpr Name kNames[] = {{"constant", Kind::constant}, {"step", Kind::step},           {"multi-step", Kind::multi_step},
                           {"cosine", Kind::cosine},     {"one-cycle", Kind::one_cycle}, {"plateau", Kind::plateau}};

Kind kind_of(const std::string& name) {
  for (const Name& entry : kNames) {
    if (name == entry.name) return entry.kind;
  }
  throw ConfigError("--lr-schedule " + name + ": unknown schedule");
}

/// Refuses a flag of other schedules.
void require_schedule(bool given, const char* flag, const std::string& schedule, const std::vector<std::string>& allowed) {
  if (!given || std::find(allowed.begin(), allowed.end(), schedule) != allowed.end()) return;
  throw ConfigError(fmt::format("{} belongs to --lr-schedule {}, got --lr-schedule {}; omit it, or choose that schedule", flag,
                                fmt::join(allowed, " or "), schedule));
}

}  // namespace

void add_schedule_options(CLI::App& app, ScheduleOptions& o) {
  const char* group = "Learning-rate schedule";
  constexpr int64_t kMost = int64_t{1} << 40;
  std::vector<std::string> names;
  for (const Name& entry : kNames) names.emplace_back(entry.name);
  app.add_option(
         "--lr-schedule", o.schedule,
         "How the learning rate changes, as in torch.optim.lr_scheduler: constant; step and multi-step by epochs; cosine and one-cycle over all "
         "steps of the run; plateau when the test metric stops improving")
      ->check(one_of(names))
      ->capture_default_str()
      ->group(group);
  app.add_option("--lr-step-size", o.step_size, "Epochs between decays, for step [30]")->check(whole_number(1, kMost))->group(group);
  app.add_option("--lr-milestones", o.milestones, "Epochs of the decays, for multi-step: 30,60,80")
      ->delimiter(',')
      ->check(whole_number(1, kMost))
      ->group(group);
  app.add_option("--lr-gamma", o.gamma, "Factor of each decay, for step and multi-step [0.1]")->check(number_above_0())->group(group);
  app.add_option("--lr-min", o.min_lr, "Lowest learning rate, for cosine and plateau [0]")->check(number_of_at_least_0())->group(group);
  app.add_option("--lr-patience", o.patience, "Epochs without improvement before a decay, for plateau [10]")
      ->check(whole_number(0, kMost))
      ->group(group);
  app.add_option("--lr-factor", o.factor, "Factor of each decay, for plateau [0.1]")->check(fraction(false, false))->group(group);
  app.add_option("--lr-threshold", o.threshold, "Relative change that counts as an improvement, for plateau [0.0001]")
      ->check(number_of_at_least_0())
      ->group(group);
  app.add_option("--lr-cooldown", o.cooldown, "Epochs after a decay in which none is counted, for plateau [0]")
      ->check(whole_number(0, kMost))
      ->group(group);
  app.add_option("--lr-metric", o.metric,
                 "What plateau watches after each epoch: loss or accuracy on the test set, or last-batch (training loss of the epoch's last batch)")
      ->check(one_of({"loss", "accuracy", "last-batch"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup-steps", o.warmup_steps, "Optimizer steps of linear warm-up before the schedule, whichever it is")
      ->check(whole_number(0, kMost))
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup-factor", o.warmup_factor, "Share of the schedule's first learning rate at the first step of the warm-up [1/3]")
      ->check(fraction(false, true))
      ->group(group);
}

LrScheduleConfig resolve_schedule(const ScheduleOptions& o, int64_t total_steps, bool evaluates_epochs) {
  require_schedule(o.step_size.has_value(), "--lr-step-size", o.schedule, {"step"});
  require_schedule(!o.milestones.empty(), "--lr-milestones", o.schedule, {"multi-step"});
  require_schedule(o.gamma.has_value(), "--lr-gamma", o.schedule, {"step", "multi-step"});
  require_schedule(o.min_lr.has_value(), "--lr-min", o.schedule, {"cosine", "plateau"});
  require_schedule(o.patience.has_value(), "--lr-patience", o.schedule, {"plateau"});
  require_schedule(o.factor.has_value(), "--lr-factor", o.schedule, {"plateau"});
  require_schedule(o.threshold.has_value(), "--lr-threshold", o.schedule, {"plateau"});
  require_schedule(o.cooldown.has_value(), "--lr-cooldown", o.schedule, {"plateau"});
  require_schedule(o.metric != "loss", "--lr-metric", o.schedule, {"plateau"});
  if (o.warmup_factor && o.warmup_steps == 0) throw ConfigError("--warmup-factor has no effect without warm-up; give --warmup-steps, or omit it");

  LrScheduleConfig config;
  config.kind = kind_of(o.schedule);
  if (!std::is_sorted(o.milestones.begin(), o.milestones.end())) {
    throw ConfigError(fmt::format("--lr-milestones {}: expected epochs in ascending order", fmt::join(o.milestones, ",")));
  }
  if (config.kind == Kind::multi_step && o.milestones.empty()) {
    throw ConfigError("--lr-schedule multi-step: expected the epochs of the decays; give them, for example --lr-milestones 30,60,80");
  }
  if (config.kind == Kind::plateau && !evaluates_epochs && o.metric != "last-batch") {
    throw ConfigError("--lr-schedule plateau watches the test set after each epoch; give --epochs instead of --steps, and no --no-eval");
  }
  if (o.warmup_steps >= total_steps && o.warmup_steps > 0) {
    throw ConfigError(fmt::format("--warmup-steps {}: the run has {} steps; expected fewer steps of warm-up", o.warmup_steps, total_steps));
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

std::string describe_schedule(const ScheduleOptions& o) {
  std::string text = o.schedule == "constant" ? "" : fmt::format(", schedule {}", o.schedule);
  if (o.warmup_steps > 0) text += fmt::format(", warm-up of {} steps", o.warmup_steps);
  return text;
}

}  // namespace vitrine::tools
