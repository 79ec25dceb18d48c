// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/lr_schedule.h"

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

/// The values of --lr-schedule.
std::vector<std::string> schedule_names();

/// The schedule for a run of `total_steps` optimizer steps that evaluates each epoch or not. throws ConfigError for
/// flags that do not belong to the schedule, or for plateau without evaluation.
LrScheduleConfig resolve_schedule(const ScheduleOptions& options, int64_t total_steps, bool evaluates_epochs);

/// ", schedule cosine, warm-up of 20 steps": what follows the learning rate in descriptions. Empty for a constant rate.
std::string describe_schedule(const ScheduleOptions& options);

}  // namespace vitrine::tools
