// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <gtest/gtest.h>

#include "nn/parallel/optimizer.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

using Kind = OptimizerConfig::Kind;

TEST(OptimizerConfig, DefaultsArePyTorchs) {
  const OptimizerConfig adamw = make_optimizer_config("adamw", {}, {}, false, {});
  EXPECT_EQ(adamw.kind, Kind::adamw);
  EXPECT_EQ(adamw.adam.lr, 1e-3);
  EXPECT_EQ(adamw.adam.beta1, 0.9);
  EXPECT_EQ(adamw.adam.beta2, 0.999);
  EXPECT_EQ(adamw.adam.eps, 1e-8);
  EXPECT_EQ(adamw.adam.weight_decay, 0.01);
  EXPECT_TRUE(adamw.adam.decoupled);
  const OptimizerConfig adam = make_optimizer_config("adam", {}, {}, false, {});
  EXPECT_EQ(adam.adam.weight_decay, 0.0);
  EXPECT_FALSE(adam.adam.decoupled);
  const OptimizerConfig sgd = make_optimizer_config("sgd", {}, {}, false, {});
  EXPECT_EQ(sgd.sgd.lr, 1e-3);
  EXPECT_EQ(sgd.sgd.momentum, 0.0);
  EXPECT_EQ(sgd.sgd.weight_decay, 0.0);
}

TEST(OptimizerConfig, TakesWhatIsGiven) {
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

TEST(OptimizerConfig, LearningRateIsThatOfItsKind) {
  for (const char* name : {"sgd", "adam", "adamw"}) {
    OptimizerConfig config = make_optimizer_config(name, 0.5, {}, false, {});
    EXPECT_EQ(config.name(), name);
    EXPECT_EQ(config.learning_rate(), 0.5);
    config.set_learning_rate(0.25);
    EXPECT_EQ(config.learning_rate(), 0.25);
  }
}

TEST(OptimizerConfig, RefusesWhatTheOptimizerDoesNotHave) {
  EXPECT_THROW(make_optimizer_config("rmsprop", {}, {}, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("adam", {}, 0.9, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("adamw", {}, {}, true, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("sgd", {}, {}, true, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("sgd", {}, 0.0, true, {}), ConfigError);
}

TEST(OptimizerConfig, RefusesValuesOutOfRange) {
  EXPECT_THROW(make_optimizer_config("sgd", -0.1, {}, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("sgd", {}, -0.5, false, {}), ConfigError);
  EXPECT_THROW(make_optimizer_config("adamw", {}, {}, false, std::numeric_limits<float>::infinity()), ConfigError);
  EXPECT_THROW(make_optimizer_config("adamw", std::numeric_limits<float>::quiet_NaN(), {}, false, {}), ConfigError);
}

}  // namespace
}  // namespace vitrine
