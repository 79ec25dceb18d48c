// SPDX-License-Identifier: Apache-2.0
#include "nn/lr_schedule.h"

#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;
using Kind = LrScheduleConfig::Kind;
using Unit = LrScheduleConfig::Unit;

LrScheduleConfig config_of(Kind kind, Unit unit = Unit::step) {
  LrScheduleConfig config;
  config.kind = kind;
  config.unit = unit;
  return config;
}

/// What record_schedules.py ran under each name.
std::map<std::string, LrScheduleConfig> recorded_configs() {
  std::map<std::string, LrScheduleConfig> configs;
  LrScheduleConfig step = config_of(Kind::step);
  step.step_size = 7;
  configs["step"] = step;
  step.step_size = 1;
  step.gamma = 0.9;
  configs["step_gamma"] = step;
  LrScheduleConfig multi_step = config_of(Kind::multi_step);
  multi_step.milestones = {3, 10, 10, 25};
  multi_step.gamma = 0.5;
  configs["multi_step"] = multi_step;
  LrScheduleConfig cosine = config_of(Kind::cosine);
  cosine.total = 50;
  configs["cosine"] = cosine;
  cosine.total = 20;
  cosine.min_lr = 0.01;
  configs["cosine_floor"] = cosine;
  cosine.total = 30;
  cosine.min_lr = 0.0;
  cosine.warmup_steps = 10;
  configs["warm_cosine"] = cosine;
  step.step_size = 8;
  step.gamma = 0.1;
  step.warmup_steps = 5;
  step.warmup_start_factor = 0.1;
  configs["warm_step"] = step;
  LrScheduleConfig cycle = config_of(Kind::one_cycle);
  cycle.total = 60;
  configs["one_cycle_sgd"] = cycle;
  cycle.total = 33;
  cycle.one_cycle.start_fraction = 0.2;
  cycle.one_cycle.initial_divisor = 10;
  cycle.one_cycle.final_divisor = 100;
  configs["one_cycle_adamw"] = cycle;
  LrScheduleConfig plateau = config_of(Kind::plateau, Unit::epoch);
  configs["plateau"] = plateau;
  plateau.plateau.patience = 2;
  configs["plateau_nan"] = plateau;
  plateau.plateau.factor = 0.5;
  plateau.plateau.cooldown = 3;
  plateau.min_lr = 0.004;
  configs["plateau_short"] = plateau;
  plateau = config_of(Kind::plateau, Unit::epoch);
  plateau.plateau.maximize = true;
  plateau.plateau.patience = 4;
  plateau.plateau.threshold = 1e-3;
  configs["plateau_accuracy"] = plateau;
  return configs;
}

TEST(LrSchedule, FollowsPyTorchTickByTick) {
  std::ifstream file(test::source_path("tests/nn/data/schedules.json"));
  ASSERT_TRUE(file) << "missing tests/nn/data/schedules.json: record_schedules.py writes it";
  const Json record = Json::parse(file);
  std::map<std::string, LrScheduleConfig> configs = recorded_configs();
  ASSERT_EQ(record.at("cases").size(), configs.size());
  for (const Json& entry : record.at("cases")) {
    const std::string name = entry.at("name");
    LrSchedule schedule(configs.at(name), record.at("lr"), 1);
    for (size_t tick = 0; tick < entry.at("values").size(); ++tick) {
      const ScheduledValues found = schedule.at(static_cast<int64_t>(tick));
      const double lr = entry.at("values")[tick][0];
      ASSERT_NEAR(found.lr, lr, 1e-12 + 1e-9 * lr) << name << ", tick " << tick;
      if (name.rfind("one_cycle", 0) == 0) {
        ASSERT_NEAR(found.momentum.value(), entry.at("values")[tick][1].get<double>(), 1e-9)
            << name << ", tick " << tick;
      } else {
        ASSERT_FALSE(found.momentum.has_value()) << name;
      }
      if (!entry.contains("metrics")) continue;
      const Json& metric = entry.at("metrics")[tick];
      schedule.end_epoch(metric.is_string() ? std::nan("") : metric.get<double>());
    }
  }
}

// Cycles so short that they begin with their fall are no exception.
TEST(LrSchedule, FollowsPyTorchInShortRunsWithAWarmup) {
  std::ifstream file(test::source_path("tests/nn/data/schedules.json"));
  const Json record = Json::parse(file);
  const std::map<std::string, Kind> kinds = {{"cosine", Kind::cosine}, {"one_cycle", Kind::one_cycle}};
  ASSERT_FALSE(record.at("short").empty());
  for (const Json& entry : record.at("short")) {
    LrScheduleConfig config = config_of(kinds.at(entry.at("name")));
    config.total = entry.at("total");
    config.warmup_steps = entry.at("warmup");
    const LrSchedule schedule(config, record.at("lr"), 1);
    for (size_t step = 0; step < entry.at("values").size(); ++step) {
      const ScheduledValues found = schedule.at(static_cast<int64_t>(step));
      const double lr = entry.at("values")[step][0];
      EXPECT_NEAR(found.lr, lr, 1e-15 + 1e-9 * lr) << entry << ", step " << step;
      if (!found.momentum) continue;
      EXPECT_NEAR(*found.momentum, entry.at("values")[step][1].get<double>(), 1e-9) << entry << ", step " << step;
    }
  }
}

TEST(LrSchedule, CountsEpochsFromTheEndOfTheWarmup) {
  LrScheduleConfig config = config_of(Kind::multi_step, Unit::epoch);
  config.milestones = {2};
  config.warmup_steps = 8;
  const LrSchedule schedule(config, 1.0, 5);
  EXPECT_DOUBLE_EQ(schedule.at(0).lr, 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(schedule.at(4).lr, 1.0 / 3.0 + 2.0 / 3.0 * 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(8).lr, 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(17).lr, 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(18).lr, 0.1) << "two epochs of five steps after the warm-up";
}

TEST(LrSchedule, KeepsItsLastValueAfterTheEnd) {
  LrScheduleConfig config = config_of(Kind::cosine);
  config.total = 10;
  config.min_lr = 0.25;
  EXPECT_DOUBLE_EQ(LrSchedule(config, 1.0, 1).at(1000).lr, 0.25);
  config.kind = Kind::one_cycle;
  const LrSchedule cycle(config, 1.0, 1);
  EXPECT_DOUBLE_EQ(cycle.at(1000).lr, cycle.at(9).lr);
}

// SequentialLR([LinearLR(start_factor=0.5, total_iters=4), OneCycleLR(max_lr=1, total_steps=10)], milestones=[4]):
// OneCycleLR sets the initial rate to max_lr / 25, from which LinearLR takes its share, and the momentum to its
// maximum.
TEST(LrSchedule, WarmupComesBeforeOneCycle) {
  LrScheduleConfig config = config_of(Kind::one_cycle);
  config.total = 10;
  const LrSchedule cycle(config, 1.0, 1);
  config.warmup_steps = 4;
  config.warmup_start_factor = 0.5;
  const LrSchedule warmed(config, 1.0, 1);
  const std::vector<double> rising = {0.02, 0.025, 0.03, 0.035};
  for (size_t step = 0; step < rising.size(); ++step) {
    const ScheduledValues found = warmed.at(static_cast<int64_t>(step));
    EXPECT_NEAR(found.lr, rising[step], 1e-15) << step;
    EXPECT_DOUBLE_EQ(found.momentum.value(), 0.95) << step;
  }
  EXPECT_NEAR(warmed.at(4).lr, 0.04, 1e-15);
  EXPECT_NEAR(warmed.at(6).lr, 1.0, 1e-15);  // 30% of the ticks after the warm-up, less one
  EXPECT_NEAR(warmed.at(13).lr, 0.04 / 1e4, 1e-15);
  for (int64_t tick = 0; tick < 20; ++tick) {
    EXPECT_DOUBLE_EQ(warmed.at(4 + tick).lr, cycle.at(tick).lr) << tick;
    EXPECT_DOUBLE_EQ(warmed.at(4 + tick).momentum.value(), cycle.at(tick).momentum.value()) << tick;
  }
}

TEST(LrSchedule, ContinuesFromARestoredState) {
  LrScheduleConfig config = config_of(Kind::plateau, Unit::epoch);
  config.plateau.patience = 1;
  LrSchedule whole(config, 1.0, 1), first(config, 1.0, 1);
  const std::vector<double> metrics = {1.0, 1.0, 1.0, 0.5, 0.6, 0.6, 0.6, 0.6};
  for (size_t i = 0; i < metrics.size(); ++i) {
    whole.end_epoch(metrics[i]);
    if (i < 4) first.end_epoch(metrics[i]);
  }
  LrSchedule second(config, 1.0, 1);
  second.restore(first.state());
  for (size_t i = 4; i < metrics.size(); ++i) second.end_epoch(metrics[i]);
  EXPECT_EQ(second.state(), whole.state());
  EXPECT_LT(second.at(8).lr, 1.0);
}

/// torch.optim.lr_scheduler.ReduceLROnPlateau(patience=0) on a rate of 2e-8: 2e-9 is 1.8e-8 lower, and 2e-10 less than
/// eps = 1e-8 below that.
TEST(LrSchedule, APlateauMakesNoChangeUpToEps) {
  for (const auto& [eps, last] : {std::pair{1e-8, 2e-9}, {0.0, 2e-11}, {1.7e-8, 2e-9}, {1.9e-8, 2e-8}}) {
    LrScheduleConfig config = config_of(Kind::plateau, Unit::epoch);
    config.plateau.patience = 0;
    config.plateau.eps = eps;
    LrSchedule schedule(config, 2e-8, 1);
    for (int epoch = 0; epoch < 4; ++epoch) schedule.end_epoch(1.0);
    EXPECT_DOUBLE_EQ(schedule.at(4).lr, last) << eps;
  }
}

TEST(LrSchedule, RefusesInvalidValues) {
  const auto message = [](const LrScheduleConfig& config, double lr = 0.1) {
    return error_of<ConfigError>([&] { LrSchedule(config, lr, 1); });
  };
  expect_contains(message(config_of(Kind::constant), -1.0), "expected lr to be finite and at least 0, got -1");
  expect_contains(message(config_of(Kind::cosine)), "expected total to be at least 1, got 0");
  LrScheduleConfig config = config_of(Kind::multi_step);
  config.milestones = {5, 3};
  expect_contains(message(config), "milestones");
  config = config_of(Kind::plateau);
  config.plateau.factor = 1.0;
  expect_contains(message(config), "factor");
  config = config_of(Kind::plateau);
  config.plateau.eps = -1.0;
  expect_contains(message(config), "eps");
  config = config_of(Kind::step);
  config.step_size = 0;
  expect_contains(message(config), "step_size");
}

}  // namespace
}  // namespace vitrine::test
