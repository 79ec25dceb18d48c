// SPDX-License-Identifier: Apache-2.0
// Mixed precision under every scheme: the same training, the same decision on every device, and no small gradient lost.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/cross_entropy.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/flatten.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

EngineConfig mixed_config(const Model& model, int64_t batch_size, const char* mode, DType compute) {
  EngineConfig config = small_config(model, batch_size);
  config.scheme = scheme_preset(mode);
  if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = batch_size / 4;
  compute_in(config, compute);
  return config;
}

/// Five steps from the same start.
TrainingOutcome five_steps(const Model& model, int devices, const EngineConfig& config) {
  const int64_t samples = config.batch_size;
  TrainingOutcome trained =
      train(model, devices, config,
            {.batches = std::vector(5, samples), .ignored = 0.2, .evaluated = samples, .waits = true});
  EXPECT_TRUE(std::ranges::all_of(trained.logits, [](float x) { return std::isfinite(x); }));
  return trained;
}

std::string dtype_label(const ::testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

class MixedPrecision : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, MixedPrecision, ::testing::Values(DType::f16, DType::bf16), dtype_label);

TEST_P(MixedPrecision, EverySchemeTrainsLikeDdp) {
  for (const uint32_t seed : {3U, 9U}) {
    const Model model = random_model(seed);
    const TrainingOutcome one = five_steps(model, 1, mixed_config(model, 12, "ddp", GetParam()));
    const TrainingOutcome full = five_steps(model, 1, small_config(model, 12));
    // A roundoff of 2^-11 or 2^-8 in each activation.
    EXPECT_LT(relative_difference(one.weights, full.weights), GetParam() == DType::f16 ? 1e-3 : 1e-2);
    EXPECT_NE(one.weights, one.working) << "the 16-bit copy has fewer digits";
    for (const std::string& mode : scheme_names()) {
      EngineConfig config = mixed_config(model, 12, mode.c_str(), GetParam());
      config.accumulate = mode == "ddp" ? 2 : 1;
      const TrainingOutcome result = five_steps(model, 3, config);
      EXPECT_LT(relative_difference(result.weights, one.weights), 1e-3) << mode;
      for (size_t i = 0; i < result.losses.size(); ++i)
        EXPECT_NEAR(result.losses[i], one.losses[i], 1e-3 * std::abs(one.losses[i])) << mode;
      const TrainingOutcome again = five_steps(model, 3, config);
      EXPECT_EQ(again.weights, result.weights) << "not the same bits: " << mode;
    }
  }
}

// Strides beyond a narrow image leave kernel columns over padding alone, whose gradient is 0.
TEST_P(MixedPrecision, TrainsStridedConvolutionsOfNarrowImagesLikeFloat) {
  const auto narrow_model = [](int64_t size, int64_t stride) {
    std::vector<Sequential::Part> parts;
    parts.push_back({"first", conv(3, 16, true)});
    parts.push_back({"second", std::make_unique<Conv2d>(Conv2dLayerConfig{
                                   .in_channels = 16, .out_channels = 16, .window = 3, .conv = {stride, 1}})});
    parts.push_back({"flatten", std::make_unique<Flatten>()});
    parts.push_back({"fc", linear(16, 5)});
    return image_model("narrow", size, 3, 5, std::move(parts));
  };
  for (const int64_t size : {1, 2, 3}) {
    const Model model = narrow_model(size, size + 1);
    const TrainingOutcome full = five_steps(model, 1, small_config(model, 16));
    const TrainingOutcome half = five_steps(model, 1, mixed_config(model, 16, "ddp", GetParam()));
    EXPECT_LT(relative_difference(half.weights, full.weights), GetParam() == DType::f16 ? 1e-3 : 1e-2) << size;
  }
}

TEST_P(MixedPrecision, LayersSeeTheRoundedMastersUnderEverySchemeAndOptimizer) {
  const Model model = random_model(9);
  for (const std::string& mode : scheme_names()) {
    for (const char* optimizer : {"sgd", "adamw"}) {
      EngineConfig config = mixed_config(model, 12, mode.c_str(), GetParam());
      config.optimizer = make_optimizer_config(optimizer, {}, {}, false, {});
      if (mode == "ddp") config.ema_decay = 0.9;
      const TrainingOutcome result = five_steps(model, 2, config);
      EXPECT_EQ(result.working, stored(GetParam(), result.weights)) << mode << ", " << optimizer;
    }
  }
}

TEST_P(MixedPrecision, OnlyDevice0HoldsMastersUnderGpu0) {
  const Model model = random_model(9);
  DeviceGroup group(test_group(3));
  const auto plans = plan_memory(model, group, mixed_config(model, 12, "criterion", GetParam()), {{12}, {}});
  const auto parameters = [&](size_t device) {
    return static_cast<double>(plans[device].peak_by_category[static_cast<size_t>(Category::parameters)]);
  };
  EXPECT_NEAR(parameters(0), 3 * parameters(1), 1024) << "4 + 2 bytes for each parameter on device 0, 2 elsewhere";
}

TEST_P(MixedPrecision, GradientsCanBeReducedInSixteenBits) {
  const Model model = random_model(9);
  for (const char* mode : {"criterion", "ddp"}) {
    EngineConfig config = small_config(model, 12);
    config.scheme = scheme_preset(mode);
    const TrainingOutcome full = five_steps(model, 3, config);
    config.precision.reduce_dtype = GetParam();
    const TrainingOutcome reduced = five_steps(model, 3, config);
    const double difference = relative_difference(reduced.weights, full.weights);
    EXPECT_LT(difference, 1e-3) << mode;
    EXPECT_GT(difference, 0.0) << "16 bits leave a trace: " << mode;
    EXPECT_EQ(reduced.losses[0], full.losses[0]) << "the totals stay f32";
    EXPECT_TRUE(std::isnan(full.steps[0].reduction_error));
    // Each of three gradients is rounded, and their sum: the norm of such errors is a fraction of the unit roundoff.
    const double roundoff = GetParam() == DType::f16 ? 0x1p-11 : 0x1p-8;
    EXPECT_GT(reduced.steps[0].reduction_error, 0.1 * roundoff) << mode;
    EXPECT_LT(reduced.steps[0].reduction_error, 2 * roundoff) << mode;
  }
}

TEST_P(MixedPrecision, ActivationsNeedHalfTheBytes) {
  const Model model = make_model("small-cnn", {.image_size = 32, .classes = 10});
  const auto activations = [&](DType compute) {
    DeviceGroup group(meta_group(1));
    const auto plans = plan_memory(model, group, mixed_config(model, 64, "ddp", compute), {{64}, {}});
    return static_cast<double>(plans[0].peak_by_category[static_cast<size_t>(Category::activations)]);
  };
  const double share = activations(GetParam()) / activations(DType::f32);
  EXPECT_GT(share, 0.49);
  EXPECT_LT(share, 0.56) << "max pooling's indices have one byte in either";
}

class Overflow : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modes, Overflow, ::testing::ValuesIn(scheme_names()),
                         [](const auto& mode) { return mode.param; });

TEST_P(Overflow, OnOneDeviceSkipsTheStepOnAllAndHalvesTheScaleOnce) {
  ReturnsInfinity::Trigger trigger;
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  for (const DType compute : {DType::f16, DType::f32}) {
    for (int culprit = 0; culprit < 3; ++culprit) {
      EngineConfig config = mixed_config(model, 12, GetParam().c_str(), compute);
      config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
      config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
      DeviceGroup group(test_group(3));
      Engine engine(model, group, config, {{12}, {}});
      engine.checkpointer().set_loss_scale_state(4096.0F, 7);
      const OwnedBatch batch = random_batch(model, 12, 1, 0);
      engine.train_step(batch.view());
      EXPECT_FALSE(engine.take_step_results(true).at(0).skipped);
      const std::vector<float> before = engine.parameters().values();
      trigger = {true, culprit};
      engine.train_step(batch.view());
      const std::vector<StepResult> totals = engine.take_step_results(true);
      trigger.armed = false;
      ASSERT_EQ(totals.size(), 1U);
      EXPECT_TRUE(totals[0].skipped);
      EXPECT_EQ(totals[0].overflow, scheme_preset(GetParam()).shards(Sharding::gradients)
                                        ? "the gradient of a parameter"
                                        : "the gradient of fc1.bias")
          << "fc2's gradients, which backward computes first, are finite";
      EXPECT_EQ(totals[0].loss_scale, 4096.0);
      EXPECT_TRUE(std::isfinite(totals[0].mean_loss()));
      EXPECT_EQ(engine.parameters().values(), before);
      if (compute == DType::f16) {
        EXPECT_EQ(engine.parameters().working_values(), stored(compute, before));
      }
      EXPECT_EQ(engine.checkpointer().loss_scale_state(), std::make_pair(2048.0F, 0));
      for (int i = 0; i < 3; ++i) engine.train_step(batch.view());
      for (const StepResult& t : engine.take_step_results(true)) {
        EXPECT_FALSE(t.skipped);
        EXPECT_EQ(t.loss_scale, 2048.0);
      }
      EXPECT_EQ(engine.checkpointer().loss_scale_state(), std::make_pair(2048.0F, 3));
      EXPECT_NE(engine.parameters().values(), before);
      for (int d = 1; d < 3; ++d)
        EXPECT_EQ(engine.parameters().working_values(d), engine.parameters().working_values(0)) << "replica " << d;
      engine.finish();
    }
  }
}

TEST(LossScale, FallsToItsMinimumThenTrainingHasDiverged) {
  ReturnsInfinity::Trigger trigger{true, 1};
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  DeviceGroup group(test_group(2));
  Engine engine(model, group, mixed_config(model, 8, "ddp", DType::f16), {{8}, {}});
  const std::vector<float> before = engine.parameters().values();
  const OwnedBatch batch = random_batch(model, 8, 1, 0);
  int steps = 0;
  const std::string text = error_of<DivergedError>([&] {
    for (; steps < 100; ++steps) {
      engine.train_step(batch.view());
      engine.take_step_results(true);
    }
  });
  expect_contains(text, "17 steps in a row", "the gradient of fc1.bias");
  EXPECT_EQ(steps, 16) << "65536 is halved 16 times down to 1, where the 17th overflow is one too many";
  EXPECT_EQ(engine.parameters().values(), before);
  trigger.armed = false;
  engine.checkpointer().set_loss_scale_state(1024.0F, 0);
  engine.train_step(batch.view());
  EXPECT_FALSE(engine.take_step_results(true).back().skipped);
  EXPECT_NE(engine.parameters().values(), before);
}

TEST(LossScale, AnOverflowInTheForwardPassIsTracedToItsLayer) {
  const Model model = random_model(4);
  EngineConfig config = mixed_config(model, 12, "ddp", DType::f16);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{12}, {}});
  engine.checkpointer().set_loss_scale_state(1024.0F, 0);
  const OwnedBatch batch = random_batch(model, 12, 1, 0);
  const std::vector<float> healthy = engine.parameters().values();
  // Weights of 60000 are finite in f16; the output of two such layers is not.
  std::vector<float> parameters = healthy;
  for (float& p : parameters) p = p == 0.0F ? 0.0F : 60000.0F;
  engine.parameters().set(parameters);
  engine.train_step(batch.view());
  const std::string text = error_of<DivergedError>([&] { engine.take_step_results(true); });
  const std::vector<StepResult> totals = engine.take_step_results(false);
  ASSERT_EQ(totals.size(), 1U);
  EXPECT_TRUE(totals[0].diverged);
  EXPECT_EQ(totals[0].overflow.rfind("the output of ", 0), 0U) << totals[0].overflow;
  expect_contains(text, "the loss of step 1 is not finite, first in " + totals[0].overflow);
  const std::string layer = totals[0].overflow.substr(14);
  EXPECT_TRUE(std::ranges::any_of(model.net->parts(), [&](const auto& part) { return part.name == layer; })) << layer;
  EXPECT_EQ(engine.parameters().values(), parameters);
  engine.parameters().set(healthy);
  for (int step = 0; step < 2; ++step) {
    engine.train_step(batch.view());
    const std::vector<StepResult> after = engine.take_step_results(true);
    EXPECT_FALSE(after.at(0).skipped);
    EXPECT_TRUE(after.at(0).overflow.empty());
  }
  engine.finish();
}

TEST(LossScale, IsLoweredWhenItIsTooLarge) {
  const Model model = random_model(9);
  EngineConfig config = mixed_config(model, 12, "ddp", DType::f16);
  config.precision.loss_scaling.scale = 0x1p24;
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{12}, {}});
  std::vector<StepResult> totals;
  for (uint32_t step = 0; step < 20; ++step) {
    engine.train_step(random_batch(model, 12, step, 0).view());
    for (StepResult& t : engine.take_step_results(true)) totals.push_back(t);
  }
  EXPECT_TRUE(totals.front().skipped);
  EXPECT_FALSE(totals.front().overflow.empty());
  EXPECT_FALSE(totals.back().skipped);
  for (size_t i = 1; i < totals.size(); ++i)
    EXPECT_EQ(totals[i].loss_scale, totals[i - 1].loss_scale * (totals[i - 1].skipped ? 0.5 : 1.0));
}

// A custom loss, so small that its gradient is below f16's smallest number, with a learning rate to match: only scaling
// keeps it.
TEST(LossScale, PreservesGradientsThatWouldVanish) {
  constexpr int64_t kSamples = 16;
  constexpr float kSmall = 0x1p-24F;
  ReturnsInfinity::Trigger trigger;
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  const OwnedBatch batch = random_batch(model, kSamples, 5, 0);
  const auto small_loss = [&](Engine& engine, const HostBatch& host) {
    ExecContext& ctx = engine.devices()[0].compute();
    engine.stage(host, engine.micro_batches()[0]);
    engine.forward();
    {
      const Tensor logits = engine.outputs().gather(0);
      const Tensor labels = ctx.allocate({kSamples}, DType::i32, Category::staging, "labels");
      copy(ctx, host.labels, labels);
      const Tensor totals = ctx.allocate({LossTotals::kCount}, DType::f32, Category::staging, "totals");
      zero(ctx, totals);
      softmax_cross_entropy(ctx, {-100, kSmall / kSamples}, logits, labels, engine.outputs().loss_scale(0), logits,
                            totals);
      engine.outputs().add_totals(totals, 0);
      engine.outputs().scatter(logits, 0);
    }
    engine.backward_and_reduce(true);
    engine.finish_reduction();
    engine.decide_step();
    engine.update_parameters();
  };
  const auto last_loss = [&](DType compute, LossScaling::Kind scaling) {
    EngineConfig config = mixed_config(model, kSamples, "ddp", compute);
    config.seed = 1;
    config.precision.loss_scaling.kind = scaling;
    config.optimizer = make_optimizer_config("sgd", 0.5 / kSmall, {}, false, {});
    config.step = small_loss;
    DeviceGroup group(test_group(1));
    Engine engine(model, group, config, {{kSamples}, {}});
    for (int step = 0; step < 30; ++step) engine.train_step(batch.view());
    const std::vector<StepResult> results = engine.take_step_results(true);
    return std::make_pair(results.front().mean_loss(), results.back().mean_loss());
  };
  const auto [full_start, full_end] = last_loss(DType::f32, LossScaling::Kind::none);
  const auto [bare_start, bare_end] = last_loss(DType::f16, LossScaling::Kind::none);
  const auto [scaled_start, scaled_end] = last_loss(DType::f16, LossScaling::Kind::dynamic);
  EXPECT_LT(full_end, 0.5 * full_start);
  EXPECT_EQ(bare_end, bare_start) << "gradients vanish without scaling";
  EXPECT_NEAR(scaled_end, full_end, 0.05 * full_start);
}

TEST(Clipping, ScalesTheMeanGradientUnderEveryScheme) {
  const Model model = random_model(4);
  const int64_t batch_size = 12;
  const OwnedBatch batch = random_batch(model, batch_size, 1, 0.3);
  EngineConfig config = small_config(model, batch_size);
  config.optimizer = make_optimizer_config("sgd", 1.0, {}, false, {});
  const auto change = [&](int devices, const EngineConfig& c, double* norm) {
    DeviceGroup group(test_group(devices));
    Engine engine(model, group, c, {{batch_size}, {}});
    if (c.precision.loss_scaling.active()) engine.checkpointer().set_loss_scale_state(1024.0F, 0);
    std::vector<float> difference = engine.parameters().values();
    engine.train_step(batch.view());
    *norm = engine.take_step_results(true).at(0).gradient_norm;
    const std::vector<float> after = engine.parameters().values();
    for (size_t i = 0; i < after.size(); ++i) difference[i] -= after[i];
    engine.finish();
    return difference;
  };
  const auto norm_of = [](const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
    return std::sqrt(sum);
  };
  double norm = 0;
  const std::vector<float> gradient = change(1, config, &norm);
  const double expected_norm = norm_of(gradient);
  EXPECT_NEAR(norm, expected_norm, 1e-4 * expected_norm) << "measured, as every checked gradient is";
  EngineConfig unchecked = config;
  unchecked.allow_non_finite = true;
  change(1, unchecked, &norm);
  EXPECT_TRUE(std::isnan(norm));
  for (const std::string& mode : scheme_names()) {
    for (const DType compute : {DType::f32, DType::f16}) {
      EngineConfig clipped = mixed_config(model, batch_size, mode.c_str(), compute);
      clipped.optimizer = config.optimizer;
      clipped.precision.clip_norm = 0.1 * expected_norm;
      const double tolerance = compute == DType::f32 ? 1e-4 : 1e-2;
      const std::vector<float> step = change(3, clipped, &norm);
      EXPECT_NEAR(norm, expected_norm, tolerance * expected_norm) << mode;
      EXPECT_NEAR(norm_of(step), 0.1 * expected_norm, tolerance * expected_norm) << mode;
      std::vector<float> scaled = gradient;
      for (float& v : scaled) v *= 0.1F;
      EXPECT_LT(relative_difference(step, scaled), compute == DType::f32 ? 1e-4 : 2e-2) << mode;
      clipped.precision.clip_norm = 10 * expected_norm;
      EXPECT_LT(relative_difference(change(3, clipped, &norm), gradient), compute == DType::f32 ? 1e-4 : 2e-2)
          << "not clipped: " << mode;
    }
  }
}

TEST(Clipping, AnInfiniteGradientThatIsAllowedSkipsTheStep) {
  ReturnsInfinity::Trigger trigger{true, 0};
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  EngineConfig config = mixed_config(model, 8, "dp", DType::f32);
  config.precision.clip_norm = 1.0;
  config.allow_non_finite = true;
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{8}, {}});
  const std::vector<float> before = engine.parameters().values();
  engine.train_step(random_batch(model, 8, 1, 0).view());
  EXPECT_TRUE(engine.take_step_results(true).at(0).skipped);
  EXPECT_EQ(engine.parameters().values(), before);
}

}  // namespace
}  // namespace vitrine::test
