// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nn/parallel/engine_config.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

/// conv (weight, bias), norm (weight, bias), classifier (weight, bias): in memory from the last to the first.
FlatLayout layout_with_norm() {
  return FlatLayout({{.name = "conv.weight", .shape = {4, 3, 3, 2}, .init = {}, .layout = {}},
                     {.name = "conv.bias", .shape = {4}, .init = {}, .layout = {}},
                     {.name = "norm.weight", .shape = {4}, .init = {}, .layout = {}, .of_norm = true},
                     {.name = "norm.bias", .shape = {4}, .init = {}, .layout = {}, .of_norm = true},
                     {.name = "classifier.weight", .shape = {10, 100}, .init = {}, .layout = {}},
                     {.name = "classifier.bias", .shape = {10}, .init = {}, .layout = {}}},
                    0);
}

std::string text(const UpdateRanges& ranges) {
  std::string all;
  for (const UpdateRange& r : *ranges)
    all += fmt::format("[{}, {}) x{} decay {}; ", r.begin, r.end, r.lr_factor, r.weight_decay);
  return all;
}

TEST(ParameterGroups, NeighboursWithEqualConstantsAreOneRange) {
  using Kind = ParameterGroup::Kind;
  const FlatLayout layout = layout_with_norm();
  EXPECT_EQ(make_update_ranges(layout, {}, 0.1), nullptr);
  const auto ranges = [&](const std::vector<ParameterGroup>& groups) {
    return text(make_update_ranges(layout, groups, 0.1));
  };
  EXPECT_EQ(ranges({{.kind = Kind::norms, .weight_decay = 0.0}}),
            "[0, 1088) x1 decay 0.1; [1088, 1216) x1 decay 0; [1216, 1408) x1 decay 0.1; ");
  EXPECT_EQ(ranges({{.kind = Kind::biases, .weight_decay = 0.0}, {.kind = Kind::norms, .weight_decay = 0.0}}),
            "[0, 64) x1 decay 0; [64, 1088) x1 decay 0.1; [1088, 1280) x1 decay 0; [1280, 1408) x1 decay 0.1; ");
  // A later group overrides what it sets, and nothing else.
  EXPECT_EQ(ranges({{.kind = Kind::biases, .weight_decay = 0.0},
                    {.pattern = "classifier.*", .lr_factor = 10.0},
                    {.pattern = "c*.b?as", .weight_decay = 0.5}}),
            "[0, 64) x10 decay 0.5; [64, 1088) x10 decay 0.1; [1088, 1152) x1 decay 0; [1152, 1216) x1 decay 0.1; "
            "[1216, 1280) x1 decay 0.5; [1280, "
            "1408) x1 decay 0.1; ");
  EXPECT_EQ(ranges({{.pattern = "*", .lr_factor = 2.0}}), "[0, 1408) x2 decay 0.1; ");
}

TEST(ParameterGroups, RefusePatternsWithoutParametersAndValuesOutOfRange) {
  const FlatLayout layout = layout_with_norm();
  for (const char* pattern : {"", "conv", "conv.?", "CONV.*", "*.weigh"}) {
    expect_contains(
        error_of<ConfigError>([&] { make_update_ranges(layout, {{.pattern = pattern, .lr_factor = 1.0}}, 0.1); }),
        "conv.weight, conv.bias");
  }
  std::vector<ParamSpec> specs = layout.specs();
  specs[0].trained = specs[1].trained = false;
  const FlatLayout frozen(specs, 0);
  expect_contains(
      error_of<ConfigError>([&] { make_update_ranges(frozen, {{.pattern = "conv.*", .lr_factor = 2.0}}, 0.1); }),
      "all parameters that match 'conv.*' are frozen, such as conv.weight; leave the group out, or train one");
  EXPECT_EQ(text(make_update_ranges(frozen, {{.pattern = "*", .lr_factor = 2.0}}, 0.1)), "[0, 1216) x2 decay 0.1; ");
  EXPECT_THROW(make_update_ranges(layout, {{.pattern = "*", .lr_factor = -1.0}}, 0.1), ConfigError);
  EXPECT_THROW(
      make_update_ranges(layout, {{.pattern = "*", .weight_decay = std::numeric_limits<double>::quiet_NaN()}}, 0.1),
      ConfigError);
}

using Kind = OptimizerConfig::Kind;

void expect_equal(const AdamConfig& a, const AdamConfig& b, const std::string& what) {
  EXPECT_EQ(a.lr, b.lr) << what;
  EXPECT_EQ(a.beta1, b.beta1) << what;
  EXPECT_EQ(a.beta2, b.beta2) << what;
  EXPECT_EQ(a.eps, b.eps) << what;
  EXPECT_EQ(a.weight_decay, b.weight_decay) << what;
  EXPECT_EQ(a.decoupled, b.decoupled) << what;
}

TEST(OptimizerConfig, DefaultsEqualThoseOfTheProgramAndPyTorch) {
  const OptimizerConfig library = EngineConfig{}.optimizer;
  const OptimizerConfig program = make_optimizer_config("adamw", {}, {}, false, {});
  EXPECT_EQ(library.kind, Kind::adamw);
  EXPECT_EQ(program.kind, Kind::adamw);
  expect_equal(library.adam_kernel(), program.adam_kernel(), "adamw");
  expect_equal(library.adam_kernel(), {1e-3, 0.9, 0.999, 1e-8, 0.01, true}, "torch.optim.AdamW");

  OptimizerConfig adam;
  adam.kind = Kind::adam;
  expect_equal(adam.adam_kernel(), make_optimizer_config("adam", {}, {}, false, {}).adam_kernel(), "adam");
  expect_equal(adam.adam_kernel(), {1e-3, 0.9, 0.999, 1e-8, 0.0, false}, "torch.optim.Adam");

  for (const SgdConfig& sgd : {OptimizerConfig{}.sgd, make_optimizer_config("sgd", {}, {}, false, {}).sgd}) {
    EXPECT_EQ(sgd.lr, 1e-3);
    EXPECT_EQ(sgd.momentum, 0.0);
    EXPECT_EQ(sgd.weight_decay, 0.0);
    EXPECT_FALSE(sgd.nesterov);
  }
}

TEST(OptimizerConfig, UsesTheGivenValues) {
  const OptimizerConfig sgd = make_optimizer_config("sgd", 0.05, 0.9, true, 1e-4);
  EXPECT_EQ(sgd.sgd.lr, 0.05);
  EXPECT_EQ(sgd.sgd.momentum, 0.9);
  EXPECT_TRUE(sgd.sgd.nesterov);
  EXPECT_EQ(sgd.sgd.weight_decay, 1e-4);
}

TEST(OptimizerConfig, CountsItsStates) {
  EXPECT_EQ(make_optimizer_config("sgd", {}, {}, false, {}).state_count(), 0);
  EXPECT_EQ(make_optimizer_config("sgd", {}, 0.9, false, {}).state_count(), 1);
  EXPECT_EQ(make_optimizer_config("adam", {}, {}, false, {}).state_count(), 2);
}

TEST(OptimizerConfig, LearningRateBelongsToTheKind) {
  for (const char* name : {"sgd", "adam", "adamw"}) {
    OptimizerConfig config = make_optimizer_config(name, 0.5, {}, false, {});
    EXPECT_EQ(config.name(), name);
    EXPECT_EQ(config.learning_rate(), 0.5);
    config.set_learning_rate(0.25);
    EXPECT_EQ(config.learning_rate(), 0.25);
  }
}

TEST(OptimizerConfig, RefusesSettingsOfOtherOptimizers) {
  EXPECT_THROW(make_optimizer_config("rmsprop", {}, {}, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("adam", {}, 0.9, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("adamw", {}, {}, true, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("sgd", {}, {}, true, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("sgd", {}, 0.0, true, {}), ConfigError);
}

TEST(OptimizerConfig, RefusesValuesOutOfRange) {
  EXPECT_THROW(make_optimizer_config("sgd", -0.1, {}, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("sgd", 1e39, {}, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("sgd", {}, -0.5, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("adamw", {}, {}, false, std::numeric_limits<float>::infinity()), ConfigError);
  EXPECT_THROW(make_optimizer_config("adamw", std::numeric_limits<float>::quiet_NaN(), {}, false, {}), ConfigError);
}

}  // namespace
}  // namespace vitrine
