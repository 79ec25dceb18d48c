// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/parallel/rounding_agreement.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/seeds.h"

namespace vitrine::test::engine_test {
namespace {

/// Five steps, the last one on a shorter batch.
TrainingOutcome run(const Model& model, int devices, const EngineConfig& config, double ignored, uint32_t seed) {
  const int64_t all = config.batch_size, fewer = std::max<int64_t>(1, all * 2 / 3);
  return train(
      model, devices, config,
      {.batches = {all, all, all, all, fewer}, .seed = seed * 100, .ignored = ignored, .first_gradients = true});
}

Scheme random_scheme(std::mt19937& random, int devices, int64_t batch_size) {
  const auto& names = scheme_names();
  Scheme scheme = scheme_preset(names[random() % names.size()]);
  if (random() % 2 == 0) {
    scheme.staging = random() % 2 == 0 ? Staging::device0 : Staging::host;
    scheme.loss_at = random() % 2 == 0 ? LossAt::gathered : LossAt::parallel;
    scheme.reduce = random() % 2 == 0 ? ReducerKind::gpu0 : ReducerKind::allreduce;
    if (scheme.reduce == ReducerKind::gpu0) scheme.shard = Sharding::none;
  }
  scheme.output_device = static_cast<int>(random() % static_cast<uint32_t>(devices));
  scheme.split = Split{};
  switch (random() % 3) {
    case 0:
      scheme.split.kind = Split::Kind::weights;
      for (int d = 0; d < devices; ++d) scheme.split.weights.push_back(static_cast<double>(random() % 4));
      if (std::accumulate(scheme.split.weights.begin(), scheme.split.weights.end(), 0.0) == 0.0)
        scheme.split.weights[0] = 1;
      break;
    case 1:
      scheme.split.kind = Split::Kind::gpu0;
      scheme.split.gpu0 =
          devices == 1 ? batch_size : static_cast<int64_t>(random() % static_cast<uint32_t>(batch_size + 1));
      break;
    default:
      break;
  }
  return scheme;
}

class EngineEquals : public ::testing::TestWithParam<uint32_t> {};

TEST_P(EngineEquals, OneDeviceUnderEverySchemeAndSplit) {
  const uint32_t seed = GetParam();
  std::mt19937 random(seed);
  const Model model = random_model(seed);
  const int64_t batch_size = 1 + static_cast<int64_t>(random() % 17);
  const double ignored = random() % 2 == 0 ? 0.0 : 0.3;
  EngineConfig config = small_config(model, batch_size);
  const TrainingOutcome reference = run(model, 1, config, ignored, seed);
  Agreement agreement(1e-5);
  for (int variant = 0; variant < 4; ++variant) {
    const int devices = 1 + static_cast<int>(random() % 5);
    config.scheme = random_scheme(random, devices, batch_size);
    config.accumulate = 1 + static_cast<int>(random() % static_cast<uint32_t>(std::min<int64_t>(3, batch_size)));
    const std::string what = "devices " + std::to_string(devices) + ", split " + config.scheme.split.str() +
                             ", accumulate " + std::to_string(config.accumulate) + ", batch " +
                             std::to_string(batch_size) + ", staging " +
                             std::to_string(static_cast<int>(config.scheme.staging)) + ", loss " +
                             std::to_string(static_cast<int>(config.scheme.loss_at)) + ", reduce " +
                             std::to_string(static_cast<int>(config.scheme.reduce)) + ", shard " +
                             std::to_string(static_cast<int>(config.scheme.shard));
    const TrainingOutcome result = run(model, devices, config, ignored, seed);
    agreement.begin_case(what);
    agreement.expect(result.first_gradients, reference.first_gradients, Agreement::Effect::one_step,
                     "gradients of the first step");
    agreement.expect(result.weights, reference.weights, Agreement::Effect::several_steps, "weights after five steps");
    const double loss_tolerance = agreement.flipped_in_case() ? 1e-2 : 1e-5;
    ASSERT_EQ(result.losses.size(), reference.losses.size());
    for (size_t i = 0; i < result.losses.size(); ++i) {
      if (std::isnan(reference.losses[i])) {
        EXPECT_TRUE(std::isnan(result.losses[i])) << what;
      } else {
        EXPECT_NEAR(result.losses[i], reference.losses[i], loss_tolerance * std::abs(reference.losses[i])) << what;
      }
    }
    const TrainingOutcome again = run(model, devices, config, ignored, seed);
    EXPECT_EQ(again.weights, result.weights) << "not the same bits: " << what;
    EXPECT_EQ(again.losses, result.losses) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineEquals, ::testing::Range(0U, 16U, kSeedStep));

TEST(Engine, AStepWithoutAValidTargetChangesNothing) {
  const Model model = random_model(3);
  DeviceGroup group(test_group(2));
  EngineConfig config = small_config(model, 6);
  config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
  Engine engine(model, group, config, {{6}, {}});
  const std::vector<float> before = engine.parameters().values();
  engine.train_step(random_batch(model, 6, 1, 1.0).view());
  const auto totals = engine.take_step_results(true);
  ASSERT_EQ(totals.size(), 1U);
  EXPECT_EQ(totals[0].valid, 0);
  EXPECT_TRUE(std::isnan(totals[0].mean_loss()));
  EXPECT_EQ(engine.parameters().values(), before);
  engine.train_step(random_batch(model, 6, 2, 0.0).view());
  EXPECT_NE(engine.parameters().values(), before);
}

TEST(Engine, FloatImagesAreUsedUnchanged) {
  const Model model = random_model(5);
  EngineConfig config = small_config(model, 8);
  config.image_dtype = DType::f32;
  std::vector<float> weights;
  for (const int devices : {1, 3}) {
    DeviceGroup group(test_group(devices));
    Engine engine(model, group, config, {{8}, {}});
    for (uint32_t step = 0; step < 3; ++step) {
      const OwnedBatch batch = random_batch(model, 8, step, 0.0, DType::f32);
      engine.train_step(batch.view());
      engine.take_step_results(true);
    }
    if (weights.empty()) weights = engine.parameters().values();
    EXPECT_LT(relative_difference(engine.parameters().values(), weights), 1e-5);
    engine.finish();
  }
}

TEST(Engine, EvaluationIsExactForEverySplit) {
  const Model model = random_model(2);
  const OwnedBatch batch = random_batch(model, 13, 5, 0.2);
  StepResult reference;
  std::vector<float> reference_logits;
  for (const int devices : {1, 2, 4}) {
    for (const char* mode : {"ddp", "dp"}) {
      DeviceGroup group(test_group(devices));
      EngineConfig config = small_config(model, 8);
      config.scheme = scheme_preset(mode);
      Engine engine(model, group, config, {{8}, {13}});
      std::vector<float> logits;
      const StepResult totals = engine.evaluate(batch.view(), &logits);
      ASSERT_EQ(logits.size(), 13U * 5U);
      if (reference_logits.empty()) {
        reference = totals;
        reference_logits = logits;
      }
      EXPECT_EQ(totals.valid, std::ranges::count_if(batch.memory->labels, [](int32_t label) { return label >= 0; }));
      EXPECT_EQ(totals.correct, reference.correct);
      EXPECT_NEAR(totals.loss_sum, reference.loss_sum, 1e-5 * reference.loss_sum);
      EXPECT_LT(relative_difference(logits, reference_logits), 1e-6);
      engine.train_step(random_batch(model, 8, 1, 0).view());
      engine.finish();
    }
  }
}

TEST(Engine, MoreDevicesThanSamplesWork) {
  const Model model = random_model(4);
  DeviceGroup group(test_group(5));
  Engine engine(model, group, small_config(model, 3), {{3}, {2}});
  const OwnedBatch batch = random_batch(model, 3, 1, 0), evaluation = random_batch(model, 2, 2, 0);
  engine.train_step(batch.view());
  EXPECT_EQ(engine.take_step_results(true)[0].valid, 3);
  EXPECT_EQ(engine.evaluate(evaluation.view()).valid, 2);
  engine.finish();
}

TEST(Engine, RefusesOneByteLessThanThePlanAndRunsAtIt) {
  const Model model = random_model(6);
  for (const char* mode : {"dp", "criterion", "ddp"}) {
    EngineConfig config = small_config(model, 12);
    config.scheme = scheme_preset(mode);
    config.accumulate = 2;
    const Workload workload{{12, 5}, {20}};
    DeviceGroup probe(test_group(3));
    const auto plans = plan_memory(model, probe, config, workload);
    DeviceGroupOptions options = test_group(3);
    options.memory_bytes.clear();
    for (const DevicePlan& plan : plans) options.memory_bytes.push_back(plan.peak_bytes);
    {
      DeviceGroup exact(options);
      Engine engine(model, exact, config, workload);
      for (const int64_t samples : {12, 12, 5}) {
        engine.train_step(random_batch(model, samples, 1, 0).view());
        engine.take_step_results(true);
      }
      engine.evaluate(random_batch(model, 20, 2, 0).view());
      engine.finish();
      for (int d = 0; d < 3; ++d)
        EXPECT_EQ(exact[d].pool().statistics().peak_bytes, plans[static_cast<size_t>(d)].peak_bytes);
    }
    for (size_t d = 0; d < 3; ++d) {
      DeviceGroupOptions less = options;
      --less.memory_bytes[d];
      DeviceGroup group(less);
      const std::string text = error_of<OutOfMemory>([&] { const Engine engine(model, group, config, workload); });
      expect_contains(text, group[static_cast<int>(d)].name(), "activations");
    }
  }
}

TEST(Engine, NamesBatchesOutsideThePlan) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, small_config(model, 8), {{8}, {}});
  EXPECT_THROW(engine.train_step(random_batch(model, 7, 1, 0).view()), ConfigError);
  EXPECT_THROW(engine.evaluate(random_batch(model, 8, 1, 0).view()), ConfigError);
  DeviceGroup other(test_group(2));
  EngineConfig config = small_config(model, 4);
  config.accumulate = 5;
  EXPECT_THROW(Engine(model, other, config, {{4}, {}}), ConfigError);
}

TEST(Engine, TwoEnginesCanUseTheSameDevicesInTurn) {
  const Model model = random_model(1);
  const auto loss_after_a_step = [&](DeviceGroup& group, int64_t samples) {
    Engine engine(model, group, small_config(model, samples), {{samples}, {samples}});
    const OwnedBatch batch = random_batch(model, samples, 1, 0);
    engine.train_step(batch.view());
    const double loss = engine.evaluate(batch.view()).loss_sum;
    engine.finish();
    return loss;
  };
  DeviceGroup used(test_group(2));
  for (const int64_t samples : {4, 16, 8}) {
    DeviceGroup unused(test_group(2));
    EXPECT_EQ(loss_after_a_step(used, samples), loss_after_a_step(unused, samples)) << samples;
  }
}

}  // namespace
}  // namespace vitrine::test::engine_test
