// SPDX-License-Identifier: Apache-2.0
// Infinity or NaN in training: which step stops it, what is named, and what the devices hold afterwards.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/cross_entropy.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::divergence_test {
namespace {

EngineConfig config_of(const Model& model, int64_t batch_size, const std::string& mode) {
  EngineConfig config = small_config(model, batch_size);
  config.scheme = scheme_preset(mode);
  if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = batch_size / 4;
  return config;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

/// The message of the DivergedError thrown while waiting for all steps; empty when there is none.
std::string divergence(Engine& engine) {
  return error_of<DivergedError>([&] { engine.take_step_results(true); });
}

class Divergence : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modes, Divergence, ::testing::ValuesIn(scheme_names()),
                         [](const auto& mode) { return mode.param; });

TEST_P(Divergence, ANonFiniteGradientOnOneDeviceStopsAllDevices) {
  ReturnsInfinity::Trigger trigger;
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  for (int culprit = 0; culprit < 3; ++culprit) {
    DeviceGroup group(test_group(3));
    Engine engine(model, group, config_of(model, 12, GetParam()), {{12}, {}});
    const OwnedBatch batch = random_batch(model, 12, 1, 0);
    engine.train_step(batch.view());
    EXPECT_EQ(divergence(engine), "");
    const std::vector<float> before = engine.parameters().values();
    trigger = {true, culprit};
    engine.train_step(batch.view());
    trigger.armed = false;
    engine.train_step(batch.view());  // in flight when the divergence is found
    const std::string text = divergence(engine);
    // Where gradients are sharded only the owner could tell which one.
    const std::string first = scheme_preset(GetParam()).shards(Sharding::gradients) ? "a parameter" : "fc1.bias";
    expect_contains(text, "the gradient of step 2 is not finite, first in the gradient of " + first);
    const std::vector<StepResult> totals = engine.take_step_results(true);
    ASSERT_EQ(totals.size(), 1U) << "the step after it has none";
    EXPECT_TRUE(totals[0].diverged && totals[0].skipped);
    for (int d = 0; d < 3; ++d) EXPECT_EQ(engine.parameters().values(d), before) << "replica " << d;
    engine.train_step(batch.view());
    EXPECT_EQ(divergence(engine), "") << "training can continue";
    EXPECT_NE(engine.parameters().values(), before);
    for (int d = 1; d < 3; ++d)
      EXPECT_EQ(engine.parameters().values(d), engine.parameters().values(0)) << "replica " << d;
    engine.finish();  // asserts that the plan was met to the byte
  }
}

TEST_P(Divergence, ANonFiniteLossIsTracedToItsLayerByRunningTheBatchAgain) {
  ReturnsInfinity::Trigger trigger;
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  const std::pair<DType, const char*> cases[] = {
      {DType::f32, "To continue, lower the learning rate, or clip the gradient's norm"},
      {DType::f16, "To continue, lower the learning rate, clip the gradient's norm, or compute in bf16 or f32"},
  };
  for (const auto& [compute, remedies] : cases) {
    EngineConfig config = config_of(model, 12, GetParam());
    config.accumulate = 2;
    compute_in(config, compute);
    DeviceGroup probe(test_group(3));
    DeviceGroupOptions exact = test_group(3);
    exact.memory_bytes.clear();
    for (const DevicePlan& plan : plan_memory(model, probe, config, {{12}, {}}))
      exact.memory_bytes.push_back(plan.peak_bytes);
    DeviceGroup group(exact);  // the second run of the batch gets no extra memory
    Engine engine(model, group, config, {{12}, {}});
    if (compute == DType::f16) engine.checkpointer().set_loss_scale_state(1024.0F, 0);
    const OwnedBatch batch = random_batch(model, 12, 1, 0);
    engine.train_step(batch.view());
    EXPECT_EQ(divergence(engine), "");
    const std::vector<float> before = engine.parameters().values();
    trigger.device = 1;
    trigger.forward_step = 1;
    engine.train_step(batch.view());
    engine.train_step(batch.view());
    const std::string text = divergence(engine);
    expect_contains(text, "the loss of step 2 is not finite, first in the output of planted", remedies);
    EXPECT_EQ(engine.take_step_results(true).back().overflow, "the output of planted");
    EXPECT_EQ(engine.parameters().values(), before);
    for (int d = 1; d < 3; ++d)
      EXPECT_EQ(engine.parameters().working_values(d), engine.parameters().working_values(0)) << "replica " << d;
    engine.train_step(batch.view());
    EXPECT_EQ(divergence(engine), "");
    EXPECT_NE(engine.parameters().values(), before);
    engine.finish();
    trigger.forward_step = -1;
  }
}

TEST_P(Divergence, ParametersStayFiniteWithAFarTooLargeLearningRate) {
  const Model model = random_model(4);
  for (const char* optimizer : {"sgd", "adam", "adamw"}) {
    for (const double lr : {1e30, 3e38}) {
      EngineConfig config = config_of(model, 12, GetParam());
      config.optimizer = make_optimizer_config(optimizer, lr, {}, false, {});
      DeviceGroup group(test_group(2));
      Engine engine(model, group, config, {{12}, {}});
      std::string text;
      for (uint32_t step = 0; step < 20 && text.empty(); ++step) {
        engine.train_step(random_batch(model, 12, step, 0).view());
        text = divergence(engine);
      }
      expect_contains(text, "training has diverged");
      for (int d = 0; d < 2; ++d) EXPECT_TRUE(all_finite(engine.parameters().values(d))) << optimizer << " " << lr;
      EXPECT_EQ(engine.parameters().values(1), engine.parameters().values(0));
    }
  }
}

TEST(DivergenceOfInputs, IsReported) {
  const Model model = random_model(5);
  EngineConfig config = config_of(model, 8, "ddp");
  config.image_dtype = DType::f32;
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{8}, {}});
  const OwnedBatch batch = random_batch(model, 8, 1, 0.0, DType::f32);
  batch.memory->floats.back() = std::numeric_limits<float>::quiet_NaN();
  engine.train_step(batch.view());
  expect_contains(divergence(engine), "of step 1 is not finite, first in the input");
}

TEST(DivergenceOfParameters, IsReported) {
  const Model model = random_model(5);
  DeviceGroup group(test_group(2));
  EngineConfig config = config_of(model, 8, "ddp");
  config.optimizer.kind = OptimizerConfig::Kind::adamw;
  config.optimizer.adamw.eps = 0.0;
  Engine engine(model, group, config, {{8}, {}});
  std::vector<float> parameters = engine.parameters().values();
  parameters[static_cast<size_t>(engine.parameters().layout().offset(1))] = std::numeric_limits<float>::quiet_NaN();
  engine.parameters().set(parameters);
  engine.train_step(random_batch(model, 8, 1, 0).view());
  expect_contains(divergence(engine), "first in parameter " + engine.parameters().layout().specs()[1].name,
                  "or set the optimizer's eps above 0");
}

TEST(AllowNonFinite, ContinuesTrainingWithNan) {
  ReturnsInfinity::Trigger trigger;
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  EngineConfig config = config_of(model, 8, "ddp");
  config.allow_non_finite = true;
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{8}, {}});
  trigger.forward_step = 0;
  const OwnedBatch batch = random_batch(model, 8, 1, 0);
  for (int step = 0; step < 3; ++step) engine.train_step(batch.view());
  const std::vector<StepResult> totals = engine.take_step_results(true);
  ASSERT_EQ(totals.size(), 3U);
  EXPECT_EQ(totals[0].overflow, "the loss");
  EXPECT_FALSE(totals[0].diverged || totals[0].skipped);
  EXPECT_FALSE(all_finite(engine.parameters().values()));
}

/// More targets than f32 can count, from a custom loss on each device.
TEST(StepResult, CountsBeyondF32AreExact) {
  const Model model = random_model(3);
  const OwnedBatch batch = random_batch(model, 6, 1, 0);
  constexpr int64_t kTargets = (int64_t{1} << 25) + 1;
  for (const char* mode : {"criterion", "ddp"}) {
    std::vector<float> counts(LossTotals::kCount, 0.0F), control(StepControl::kCount);
    LossTotals::add_to_count(counts.data(), LossTotals::kValid, kTargets);
    LossTotals::add_to_count(counts.data(), LossTotals::kCorrect, kTargets - 2);
    EngineConfig config = config_of(model, 6, mode);
    config.step = [&](Engine& engine, const HostBatch&) {
      for (int d = 0; d < 3; ++d) {
        ExecContext& ctx = engine.devices()[d].compute();
        const Tensor mine = ctx.allocate({LossTotals::kCount}, DType::f32, Category::staging, "totals");
        copy(ctx, ConstView(counts.data(), {LossTotals::kCount}, DType::f32, DeviceId::host()), mine);
        engine.outputs().add_totals(mine, d);
      }
      engine.finish_reduction();
      engine.decide_step();
      copy(engine.devices()[0].compute(), engine.step_control(0),
           View{control.data(), {StepControl::kCount}, DType::f32, DeviceId::host()});
    };
    DeviceGroup group(test_group(3));
    Engine engine(model, group, config, {{6}, {}});
    engine.train_step(batch.view());
    const StepResult result = engine.take_step_results(true).at(0);
    group.synchronize();
    EXPECT_EQ(result.valid, 3 * kTargets) << mode;
    EXPECT_EQ(result.correct, 3 * (kTargets - 2)) << mode;
    EXPECT_EQ(control[StepControl::kFactor], static_cast<float>(6.0 / (3.0 * kTargets))) << mode;
  }
}

TEST(Divergence, NonFiniteParametersAreNamedInTrainingOnly) {
  const Model model = random_model(9);
  const OwnedBatch batch = random_batch(model, 10, 3, 0);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config_of(model, 10, "ddp"), {{10}, {10}});
  const std::vector<float> healthy = engine.parameters().values();
  const auto first_of = [&](float value) {
    engine.parameters().set(std::vector<float>(healthy.size(), value));
    EXPECT_NO_THROW(engine.evaluate(batch.view()));
    engine.train_step(batch.view());
    expect_contains(divergence(engine), "is not finite");
    return engine.take_step_results(false).at(0).overflow;
  };
  EXPECT_EQ(first_of(std::numeric_limits<float>::infinity()),
            "parameter " + engine.parameters().layout().specs()[0].name);
  // Finite parameters whose products are not.
  EXPECT_EQ(first_of(3e38F).rfind("the output of ", 0), 0U);
  engine.parameters().set(healthy);
  engine.train_step(batch.view());
  EXPECT_EQ(divergence(engine), "");
  engine.finish();  // asserts that the plan was met to the byte
}

}  // namespace
}  // namespace vitrine::test::divergence_test
