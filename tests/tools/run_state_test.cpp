// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/run_state.h"

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tools/program/checkpoint/run_settings.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {
namespace {

TEST(RunState, EveryNumberSurvivesTheJson) {
  RunState s;
  s.step = int64_t{1} << 40, s.updates = 12, s.skipped_in_row = 3;
  s.learning_rate = 0.1 / 3.0;
  s.momentum = 0.95 - 1e-17;
  s.loss_scale = {0x1p-126F, 1999};
  s.epoch = 5, s.batch = 7, s.batches_per_epoch = 9, s.batch_size = 64;
  s.seed = std::numeric_limits<uint64_t>::max();
  s.epoch_so_far.totals.loss_sum = std::numeric_limits<double>::quiet_NaN();
  s.epoch_so_far.totals.valid = 41, s.epoch_so_far.samples = 42, s.epoch_so_far.steps = 7;
  s.epoch_so_far.seconds = 1.0 / 7.0;
  s.run_so_far.totals.loss_sum = 0.1, s.run_so_far.steps = 52;
  s.schedule = {0.001, std::numeric_limits<double>::infinity(), true, 4, 2};
  s.test_loss = 2.25, s.test_accuracy = 0.1;
  s.best = BestCheckpoint{36, 1.0 / 3.0};
  s.settings = {{"lr", "0.1"}, {"data", "a \"set\" \xFF"}};
  s.plans = TunedPlans{
      "GPU", "cuBLASLt 13.0.2", 1 << 20, true, {{"matmul m 1 n 2 k 3", "algorithm 4: 00", 1.0 / 3.0, 0.5, 7}}};
  s.version = "1.2.3";
  s.run_id = "0123456789abcdef";
  s.parameters = "fedcba9876543210";
  const RunState read = parse_run_state("x", run_state_json(s));
  EXPECT_EQ(read.step, s.step);
  EXPECT_EQ(read.updates, s.updates);
  EXPECT_EQ(read.skipped_in_row, s.skipped_in_row);
  EXPECT_EQ(read.learning_rate, s.learning_rate);
  EXPECT_EQ(read.momentum, s.momentum);
  EXPECT_EQ(read.loss_scale, s.loss_scale);
  EXPECT_EQ(read.epoch, s.epoch);
  EXPECT_EQ(read.batch, s.batch);
  EXPECT_EQ(read.batches_per_epoch, s.batches_per_epoch);
  EXPECT_EQ(read.batch_size, s.batch_size);
  EXPECT_EQ(read.seed, s.seed);
  EXPECT_TRUE(std::isnan(read.epoch_so_far.totals.loss_sum));
  EXPECT_EQ(read.epoch_so_far.totals.valid, s.epoch_so_far.totals.valid);
  EXPECT_EQ(read.epoch_so_far.samples, s.epoch_so_far.samples);
  EXPECT_EQ(read.epoch_so_far.steps, s.epoch_so_far.steps);
  EXPECT_EQ(read.epoch_so_far.seconds, s.epoch_so_far.seconds);
  EXPECT_EQ(read.run_so_far.totals.loss_sum, 0.1);
  EXPECT_EQ(read.run_so_far.steps, 52);
  EXPECT_EQ(read.schedule, s.schedule);
  EXPECT_EQ(read.test_loss, s.test_loss);
  EXPECT_EQ(read.test_accuracy, s.test_accuracy);
  ASSERT_TRUE(read.best);
  EXPECT_EQ(read.best->step, s.best->step);
  EXPECT_EQ(read.best->accuracy, s.best->accuracy);
  EXPECT_EQ(read.settings[0], s.settings[0]);
  EXPECT_EQ(read.settings[1].first, "data");  // whose value was not UTF-8
  EXPECT_EQ(read.plans, s.plans);
  EXPECT_EQ(read.version, s.version);
  EXPECT_EQ(read.run_id, s.run_id);
  EXPECT_EQ(read.parameters, s.parameters);
}

TEST(RunState, HasNothingThatIsNeverRead) {
  const nlohmann::json random = nlohmann::json::parse(run_state_json({}))["random"];
  EXPECT_EQ(random, (nlohmann::json{{"generator", "philox4x32-10"}, {"seed", 0}}));
}

TEST(RunState, RunsHaveDifferentIds) {
  EXPECT_EQ(new_run_id().size(), 16U);
  EXPECT_NE(new_run_id(), new_run_id());
}

TEST(RunState, WhatIsMissingOrImpossibleIsNamed) {
  RunState s;
  s.batches_per_epoch = s.batch_size = 1;
  nlohmann::json json = nlohmann::json::parse(run_state_json(s));
  parse_run_state("DIR", json.dump());
  for (const auto& [name, value] : json.items()) {
    if (name == "version") continue;
    nlohmann::json without = json;
    without.erase(name);
    const std::string message = error_of<DataError>([&] { parse_run_state("DIR", without.dump()); });
    expect_contains(message, "DIR: ", name);
  }
  json["batch"] = 2;
  expect_contains(error_of<DataError>([&] { parse_run_state("DIR", json.dump()); }),
                  "an impossible position: step 0, batch 2 of 1 of epoch 0");
  EXPECT_THROW(parse_run_state("DIR", "[]"), DataError);
  json["version"] = "99.0.0";
  json["step"] = "many";
  expect_contains(error_of<DataError>([&] { parse_run_state("DIR", json.dump()); }),
                  "DIR: version 99.0.0 wrote the checkpoint");
}

TEST(RunSettings, OnlyLearningRateAndScheduleMayChangeResults) {
  const std::vector<std::pair<std::string, std::string>> before = {
      {"lr", "0.1"}, {"split", "equal"}, {"epochs", "3"}, {"momentum", ""}};
  const auto now = [](const std::string& lr, const std::string& split, const std::string& momentum) {
    return std::vector<RunSetting>{{"lr", lr, Effect::rate},
                                   {"split", split, Effect::rounding},
                                   {"epochs", "3", Effect::none},
                                   {"momentum", momentum, Effect::result}};
  };
  EXPECT_TRUE(compare_settings(before, now("0.1", "equal", ""), "c").empty());
  const auto changes = describe_changes(compare_settings(before, now("0.2", "1,2", ""), "c"));
  EXPECT_EQ(changes, (std::vector<std::string>{"--lr is 0.2, in the checkpoint 0.1: in force from here on",
                                               "--split is 1,2, in the checkpoint equal: results differ by rounding"}));
  expect_contains(error_of<ConfigError>([&] { compare_settings(before, now("0.2", "1,2", "0.9"), "runs/a/step-3"); }),
                  "--resume: --momentum is 0.9, in the checkpoint not set. This changes results; use the checkpoint's "
                  "settings, or start a new run from its weights with --init-weights runs/a/step-3");
  // A setting that the checkpoint does not know.
  EXPECT_THROW(compare_settings({}, now("0.1", "equal", "0.9"), "c"), ConfigError);
  // A setting that only the checkpoint knows, from a newer version.
  auto newer = before;
  newer.emplace_back("stochastic-depth", "0.3");
  newer.emplace_back("a-feature-that-is-off", "");
  expect_contains(error_of<ConfigError>([&] { compare_settings(newer, now("0.1", "equal", ""), "c"); }),
                  "--stochastic-depth is not set, in the checkpoint 0.3. This changes results");
}

TEST(RunSettings, OtherParametersCannotBeAllowed) {
  const std::vector<std::pair<std::string, std::string>> before = {
      {"model", "mlp"}, {"data", "a"}, {"image-size", "8"}, {"lr", "0.1"}};
  const auto refusal = [&](const std::string& model, const std::string& data, const std::string& size) {
    const std::vector<RunSetting> now{
        {"model", model, Effect::none}, {"data", data, Effect::none}, {"image-size", size, Effect::none}};
    return error_of<ConfigError>([&] { compare_settings(before, now, "c", false); });
  };
  expect_contains(refusal("lenet5", "b", "16"), "--model is lenet5, in the checkpoint mlp (the parameters have other");
  expect_contains(refusal("mlp", "b", "16"), "--image-size is 16, in the checkpoint 8 (the parameters have other");
  expect_contains(refusal("mlp", "b", "8"), "--data is b, in the checkpoint a (the parameters have other");
}

TEST(RunSettings, AHashStandsForNamesAndShapesOfParameters) {
  const auto hash = [](const std::string& name, const Shape& shape) {
    ParamSpec spec;
    spec.name = name;
    spec.shape = shape;
    return parameters_hash(FlatLayout({spec}, 0));
  };
  EXPECT_EQ(hash("a", {2, 3}), hash("a", {2, 3}));
  EXPECT_NE(hash("a", {2, 3}), hash("b", {2, 3}));
  EXPECT_NE(hash("a", {2, 3}), hash("a", {3, 2}));
}

TEST(RunSettings, DataDifferIfOneLabelDoes) {
  constexpr int64_t kSamples = 1000;
  const auto identity = [](int64_t changed, bool in_test_set) {
    Job job;
    for (Dataset* const set : {&job.data.train, &job.data.test}) {
      set->name = "set";
      set->height = set->width = set->channels = 1;
      set->classes = 10;
      std::vector<int32_t> labels(kSamples, 3);
      if ((set == &job.data.test) == in_test_set) labels[static_cast<size_t>(changed)] = 4;
      set->samples = samples_in_memory(std::vector<uint8_t>(kSamples, 7), std::move(labels));
    }
    return identify_data(job);
  };
  std::set<std::string> all;
  for (const int64_t changed : {0, 1, 2, 3, 4, 998, 999}) {
    for (const bool in_test_set : {false, true}) all.insert(identity(changed, in_test_set));
  }
  EXPECT_EQ(all.size(), 14U);
  EXPECT_EQ(identity(5, true), identity(5, true));
}

TEST(CheckpointOptions, IntervalsAreEpochsOrSteps) {
  const auto interval = [](const char* text) {
    CheckpointOptions options;
    options.directory = "d";
    options.every = text;
    return resolve_checkpoint_interval(options);
  };
  EXPECT_TRUE(resolve_checkpoint_interval({}).epochs);
  EXPECT_TRUE(interval("epoch").epochs);
  EXPECT_EQ(interval("500").steps, 500);
  EXPECT_FALSE(interval("500").epochs);
  for (const char* bad : {"", "0", "-1", "m", "10m", "5s", "5 ", "epochs", "1e3"}) {
    expect_contains(error_of<ConfigError>([&] { interval(bad); }), "expected epoch or a number of steps");
  }
}

}  // namespace
}  // namespace vitrine::tools
