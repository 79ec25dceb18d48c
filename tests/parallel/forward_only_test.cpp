// SPDX-License-Identifier: Apache-2.0
// Engines that only evaluate.
#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test::forward_only_test {
namespace {

struct Result {
  StepResult totals;
  std::vector<float> logits;
};

Result evaluate(Engine& engine, const Model& model) {
  Result result;
  result.totals = engine.evaluate(random_batch(model, 13, 5, 0.2).view(), &result.logits);
  return result;
}

int64_t& in_category(DevicePlan& plan, Category category) {
  return plan.peak_by_category[static_cast<size_t>(category)];
}

TEST(ForwardOnly, EvaluatesLikeATrainingEngineWithinItsPlan) {
  const Model model = random_model(3);
  for (const DType compute : {DType::f32, DType::f16, DType::bf16}) {
    EngineConfig config = small_config(model, 13);
    config.precision.compute = compute;
    for (const int devices : {1, 3}) {
      DeviceGroup training_group(test_group(devices));
      Engine training(model, training_group, config, {{13}, {13}});
      training.train_step(random_batch(model, 13, 1, 0).view());
      const std::vector<float> weights = training.parameters().values();
      const Result expected = evaluate(training, model);

      EngineConfig forward = config;
      forward.forward_only = true;
      DeviceGroup probe(test_group(devices));
      DeviceGroupOptions exact = test_group(devices);
      exact.memory_bytes.clear();
      std::vector<DevicePlan> plans = plan_memory(model, probe, forward, {{}, {13}});
      for (DevicePlan& plan : plans) {
        exact.memory_bytes.push_back(plan.peak_bytes);
        EXPECT_EQ(in_category(plan, Category::gradients), 0);
        EXPECT_EQ(in_category(plan, Category::optimizer), 0);
        EXPECT_NEAR(static_cast<double>(in_category(plan, Category::parameters)),
                    static_cast<double>(weights.size()) * static_cast<double>(size_of(compute)), 512);
      }
      DeviceGroup group(exact);
      Engine engine(model, group, forward, {{}, {13}});
      engine.parameters().set(weights);
      const Result result = evaluate(engine, model);
      EXPECT_EQ(result.logits, expected.logits) << dtype_name(compute);
      EXPECT_EQ(result.totals.loss_sum, expected.totals.loss_sum);
      EXPECT_EQ(result.totals.correct, expected.totals.correct);
      EXPECT_EQ(engine.parameters().working_values(devices - 1), training.parameters().working_values(0))
          << "rounded as a device rounds them";
      engine.parameters().verify();
      engine.finish();  // asserts that the plan was met to the byte
      for (size_t d = 0; d < plans.size(); ++d)
        EXPECT_EQ(group[static_cast<int>(d)].pool().statistics().peak_bytes, plans[d].peak_bytes);
    }
  }
}

TEST(ForwardOnly, RefusesToTrain) {
  const Model model = random_model(3);
  EngineConfig config = small_config(model, 8);
  config.forward_only = true;
  DeviceGroup group(test_group(2));
  EXPECT_THROW(Engine(model, group, config, {{8}, {8}}), ConfigError)
      << "there is nothing to plan training batches for";
  Engine engine(model, group, config, {{}, {8}});
  EXPECT_THROW(engine.train_step(random_batch(model, 8, 1, 0).view()), ConfigError);
  EXPECT_THROW(engine.parameters().gradients(), ConfigError);
  EXPECT_THROW(engine.checkpointer().loss_scale_state(), ConfigError);
  EXPECT_THROW(engine.checkpointer().set_loss_scale_state(1.0F, 0), ConfigError);
  EXPECT_EQ(engine.evaluate(random_batch(model, 8, 1, 0).view()).valid, 8);
}

}  // namespace
}  // namespace vitrine::test::forward_only_test
