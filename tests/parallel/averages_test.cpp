// SPDX-License-Identifier: Apache-2.0
// Averages of parameters and parameter groups, under every scheme.
#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test::averages_test {
namespace {

constexpr int64_t kBatch = 12;
constexpr double kDecay = 0.75;

EngineConfig with_averages(const Model& model) {
  EngineConfig config = small_config(model, kBatch);
  config.ema_decay = kDecay;
  return config;
}

OwnedBatch batch_of(const Model& model, uint32_t step) { return random_batch(model, kBatch, 70 + step, 0.0); }

TEST(Averages, FollowTheParametersAndTakeTheirPlaceForAWhile) {
  const Model model = random_model(3);
  for (const std::string& scheme : scheme_names()) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(scheme + " " + dtype_name(compute));
      EngineConfig config = with_averages(model);
      config.scheme = scheme_preset(scheme);
      if (scheme == "balanced") config.scheme.split.gpu0 = 2;
      config.precision.compute = compute;
      DeviceGroup group(test_group(2));
      Engine engine(model, group, config, {{kBatch}, {kBatch}});
      EXPECT_EQ(engine.parameters().averages().values(), engine.parameters().values());  // before the first step
      std::vector<double> expected;
      for (uint32_t step = 0; step < 4; ++step) {
        engine.train_step(batch_of(model, step).view());
        const std::vector<float> parameters = engine.parameters().values();
        if (step == 0) expected.assign(parameters.begin(), parameters.end());
        for (size_t i = 0; i < expected.size(); ++i)
          expected[i] += (1 - kDecay) * (static_cast<double>(parameters[i]) - expected[i]);
      }
      const std::vector<float> averages = engine.parameters().averages().values(),
                               parameters = engine.parameters().values(),
                               working = engine.parameters().working_values(1);
      for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(averages[i], expected[i], 1e-6) << i;
      EXPECT_GT(relative_difference(averages, parameters), 1e-4);
      const OwnedBatch test = batch_of(model, 100);
      const double loss = engine.evaluate(test.view()).mean_loss();
      double average_loss = 0;
      {
        const Engine::AverageScope scope(engine);
        average_loss = engine.evaluate(test.view()).mean_loss();
        EXPECT_EQ(engine.parameters().values(), averages);
        EXPECT_EQ(engine.parameters().working_values(1), engine.parameters().working_values(0));
        EXPECT_THROW(engine.train_step(test.view()), OrderError);
        EXPECT_THROW(engine.parameters().averages().values(), OrderError);
        EXPECT_THROW(Engine::AverageScope another(engine), OrderError);
      }
      EXPECT_EQ(engine.parameters().values(), parameters);
      EXPECT_EQ(engine.parameters().averages().values(), averages);
      EXPECT_EQ(engine.parameters().working_values(1), working);
      EXPECT_EQ(engine.evaluate(test.view()).mean_loss(), loss);
      engine.finish();  // asserts that the plan was met to the byte
      // An engine that starts from the averages evaluates to the same.
      DeviceGroup other_group(test_group(2));
      Engine other(model, other_group, config, {{kBatch}, {kBatch}});
      other.parameters().set(averages);
      EXPECT_EQ(other.evaluate(test.view()).mean_loss(), average_loss);
      EXPECT_NE(average_loss, loss);
    }
  }
}

TEST(Averages, CanBeSetToContinue) {
  const Model model = random_model(4);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, with_averages(model), {{kBatch}, {}});
  std::vector<float> values(static_cast<size_t>(engine.parameters().layout().parameter_elements()), 0.5F);
  engine.parameters().averages().set(values);
  EXPECT_EQ(engine.parameters().averages().values(0), values);
  EXPECT_EQ(engine.parameters().averages().values(1), values);
  values.pop_back();
  EXPECT_THROW(engine.parameters().averages().set(values), ShapeError);
}

TEST(Averages, NeedADecay) {
  const Model model = random_model(5);
  DeviceGroup group(test_group(1));
  Engine engine(model, group, small_config(model, kBatch), {{kBatch}, {}});
  EXPECT_THROW(engine.parameters().averages().values(), ConfigError);
  EXPECT_THROW(Engine::AverageScope scope(engine), ConfigError);
  EngineConfig config = small_config(model, kBatch);
  for (const double decay : {-0.1, 1.0}) {
    config.ema_decay = decay;
    EXPECT_THROW(plan_memory(model, group, config, {{kBatch}, {}}), ConfigError);
  }
}

/// A group without learning rate keeps its parameters; the others move as before. On several devices as on one.
TEST(ParameterGroupEngine, AGroupWithoutLearningRateStandsStill) {
  const Model model = random_model(6);
  const std::string frozen = model.net->parameters().front().name;
  for (const std::string& scheme : scheme_names()) {
    EngineConfig config = small_config(model, kBatch);
    config.scheme = scheme_preset(scheme);
    if (scheme == "balanced") config.scheme.split.gpu0 = 2;
    config.parameter_groups = {{.kind = ParameterGroup::Kind::biases, .weight_decay = 0.5},
                               {.pattern = frozen, .lr_factor = 0.0}};
    DeviceGroup group(test_group(2));
    Engine engine(model, group, config, {{kBatch}, {}});
    const std::vector<float> before = engine.parameters().values();
    for (uint32_t step = 0; step < 2; ++step) engine.train_step(batch_of(model, step).view());
    const std::vector<float> after = engine.parameters().values();
    const FlatLayout& layout = engine.parameters().layout();
    for (int i = 0; i < layout.size(); ++i) {
      const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
      const auto part = [&](const std::vector<float>& flat) {
        return std::vector<float>(flat.begin() + layout.offset(i),
                                  flat.begin() + layout.offset(i) + spec.shape.numel());
      };
      EXPECT_EQ(part(before) == part(after), spec.name == frozen) << scheme << " " << spec.name;
    }
    engine.finish();
  }
}

}  // namespace
}  // namespace vitrine::test::averages_test
