// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <gtest/gtest.h>

#include "nn/parallel/engine_config.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

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
