// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "nn/lr_schedule.h"

namespace CLI {
class App;
}

namespace vitrine::tools {

/// The flags of the learning-rate schedule.
struct ScheduleOptions {
  std::string schedule = "constant";
  std::optional<int64_t> step_size, patience, cooldown;
  std::vector<int64_t> milestones;
  std::optional<double> gamma, factor, threshold, min_lr;
  std::string metric = "loss";  // of plateau: loss or accuracy on the test set, or last-batch
  int64_t warmup_steps = 0;
  std::optional<double> warmup_factor;
};

void add_schedule_options(CLI::App& app, ScheduleOptions& options);

/// The schedule for a run of `total_steps` optimizer steps that evaluates each epoch or not. throws ConfigError for
/// flags that do not belong to the schedule, or for plateau without evaluation.
LrScheduleConfig resolve_schedule(const ScheduleOptions& options, int64_t total_steps, bool evaluates_epochs);

/// The flags as given, for the JSON configuration; null for those that were left out.
nlohmann::ordered_json schedule_json(const ScheduleOptions& options);
/// The names of the flags that belong to some schedules only, and their values in force; "" for those of other
/// schedules.
std::vector<std::pair<const char*, std::string>> schedule_values(const ScheduleOptions& options);

/// ", schedule cosine, warm-up of 20 steps": what follows the learning rate in descriptions. Empty for a constant rate.
std::string describe_schedule(const ScheduleOptions& options);

}  // namespace vitrine::tools
