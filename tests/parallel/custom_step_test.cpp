// SPDX-License-Identifier: Apache-2.0
// Training steps that are put together from the engine's parts.
#include <array>

#include <gtest/gtest.h>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::custom_step_test {
namespace {

constexpr int64_t kSamples = 10;

void finish_step(Engine& engine) {
  engine.finish_reduction();
  engine.decide_step();
  engine.update_parameters();
  engine.distribute_parameters();
}

/// The scheme's loss, computed by the caller on one device.
TrainingStep step_with_loss_on(int device) {
  return [device](Engine& engine, const HostBatch& batch) {
    for (const MicroBatch& micro_batch : engine.micro_batches()) {
      engine.stage(batch, micro_batch);
      engine.forward();
      {
        const Tensor logits = engine.outputs().gather(device);
        const int64_t samples = micro_batch.samples();
        EXPECT_EQ(logits.shape(), (Shape{samples, 5}));
        ExecContext& ctx = engine.devices()[device].compute();
        const Tensor labels = ctx.allocate({samples}, DType::i32, Category::staging, "labels");
        copy(ctx, batch.labels.rows(micro_batch.first_row, micro_batch.first_row + samples), labels);
        const Tensor totals = ctx.allocate({LossTotals::kCount}, DType::f32, Category::staging, "totals");
        zero(ctx, totals);
        const CrossEntropyConfig loss{-100, 1.0F / static_cast<float>(engine.outputs().nominal_targets())};
        softmax_cross_entropy(ctx, loss, logits, labels, engine.outputs().loss_scale(device), logits, totals);
        engine.outputs().add_totals(totals, device);
        engine.outputs().scatter(logits, device);
      }
      engine.backward_and_reduce(micro_batch.last);
    }
    finish_step(engine);
  };
}

const TrainingCase kTraining{.batches = {kSamples, kSamples, kSamples}, .ignored = 0.2};

TEST(CustomStep, ALossOnAnyDeviceTrainsLikeTheBuiltInStep) {
  const Model model = random_model(9);
  EngineConfig config = small_config(model, kSamples);
  const TrainingOutcome expected = train(model, 1, config, kTraining);
  for (const char* mode : {"ddp", "dp", "criterion"}) {
    for (int device = 0; device < 3; ++device) {
      config.scheme = scheme_preset(mode);
      config.scheme.split = parse_split("1,0,1");
      config.accumulate = device == 2 ? 2 : 1;
      config.step = step_with_loss_on(device);
      const TrainingOutcome result = train(model, 3, config, kTraining);
      EXPECT_LT(relative_difference(result.weights, expected.weights), 1e-5) << mode << ", loss on device " << device;
      for (size_t i = 0; i < result.losses.size(); ++i)
        EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-5 * expected.losses[i]);
    }
  }
}

/// Cross-entropy and a loss scale by hand, all on each device: nothing is gathered.
void step_with_loss_on_each_device(Engine& engine, const HostBatch& batch) {
  constexpr float kScale = 0.5F;
  OutputExchange& outputs = engine.outputs();
  for (const MicroBatch& micro_batch : engine.micro_batches()) {
    engine.stage(batch, micro_batch);
    engine.forward();
    for (int d = 0; d < engine.devices().size(); ++d) {
      const Tensor& logits = outputs.on_device(d);
      if (!logits) continue;
      ExecContext& ctx = engine.devices()[d].compute();
      const Tensor totals = ctx.allocate({LossTotals::kCount}, DType::f32, Category::staging, "totals");
      zero(ctx, totals);
      const CrossEntropyConfig loss{-100, kScale / static_cast<float>(outputs.nominal_targets())};
      softmax_cross_entropy(ctx, loss, logits, outputs.targets(d), View(), logits, totals);
      outputs.add_totals(totals, d);
      outputs.set_gradient(d, logits);
    }
    engine.backward_and_reduce(micro_batch.last);
  }
  engine.finish_reduction();
  for (int d = 0; d < engine.devices().size(); ++d) {
    const View sums = engine.gradients(d);
    add(engine.devices()[d].compute(), sums, sums, sums);
  }
  engine.decide_step();
  engine.update_parameters();
  engine.distribute_parameters();
}

TEST(CustomStep, ALossOnEachDeviceGathersNothing) {
  const Model model = random_model(9);
  EngineConfig config = small_config(model, kSamples);
  const TrainingOutcome expected = train(model, 1, config, kTraining);
  for (const char* mode : {"ddp", "criterion", "zero1"}) {
    config.scheme = scheme_preset(mode);
    config.scheme.split = parse_split("1,0,1");
    config.accumulate = 2;
    config.step = step_with_loss_on_each_device;
    const TrainingOutcome result = train(model, 3, config, kTraining);
    EXPECT_LT(relative_difference(result.weights, expected.weights), 1e-5) << mode;
    for (size_t i = 0; i < result.losses.size(); ++i)
      EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-5 * expected.losses[i]);
  }
}

TEST(CustomStep, AGradientUnlikeItsOutputsIsRefused) {
  const Model model = random_model(9);
  EngineConfig config = small_config(model, kSamples);
  config.step = [](Engine& engine, const HostBatch& batch) {
    engine.stage(batch, engine.micro_batches()[0]);
    engine.forward();
    OutputExchange& outputs = engine.outputs();
    const std::string name = engine.devices()[0].name();
    const auto message = [&]<class Refusal>(int device, const Shape& shape, DType dtype) {
      const Tensor other =
          engine.devices()[device].compute().allocate(shape, dtype, Category::activations, "a wrong gradient");
      return error_of<Refusal>([&] { outputs.set_gradient(0, other); });
    };
    EXPECT_EQ(message.operator()<ShapeError>(0, {3}, DType::f32),
              "set_gradient: the gradient on " + name + " has shape (3), expected (5, 5), as the outputs there");
    EXPECT_EQ(message.operator()<DtypeError>(0, {5, 5}, DType::f16),
              "set_gradient: the gradient on " + name + " has dtype f16, expected f32, as the outputs there");
    expect_contains(message.operator()<DeviceError>(1, {5, 5}, DType::f32), "set_gradient: the gradient on ",
                    " has device ", ":1, expected ", ":0, as the outputs there");
    engine.loss();
    engine.backward_and_reduce(true);
    finish_step(engine);
  };
  train(model, 2, config, kTraining);
}

TEST(CustomStep, OutputsExistOnDevicesWithSamples) {
  const Model model = random_model(9);
  EngineConfig config = small_config(model, kSamples);
  config.scheme.split = parse_split("1,0,1");
  config.step = [](Engine& engine, const HostBatch& batch) {
    engine.stage(batch, engine.micro_batches()[0]);
    engine.forward();
    EXPECT_EQ(engine.outputs().on_device(0).shape(), (Shape{5, 5}));
    EXPECT_FALSE(engine.outputs().on_device(1));
    EXPECT_EQ(engine.outputs().on_device(2).shape(), (Shape{5, 5}));
    engine.loss();
    engine.backward_and_reduce(true);
    finish_step(engine);
  };
  train(model, 3, config, kTraining);
}

TEST(CustomStep, GradientsAreNotReducedInANoReductionScope) {
  const Model model = random_model(9);
  EngineConfig config = small_config(model, kSamples);
  config.scheme.split = parse_split("6,4");
  bool reads = false;
  std::array<std::vector<float>, 2> apart, sum;
  const auto read = [&reads](Engine& engine, std::array<std::vector<float>, 2>& gradients) {
    for (int d = 0; reads && d < 2; ++d) gradients[static_cast<size_t>(d)] = engine.parameters().gradients(d);
  };
  config.step = [&](Engine& engine, const HostBatch& batch) {
    const auto pass = [&] {
      engine.stage(batch, engine.micro_batches()[0]);
      engine.forward();
      engine.loss();
      engine.backward_and_reduce(true);
      engine.finish_reduction();
    };
    {
      const Engine::NoReductionScope scope(engine);
      pass();
    }
    read(engine, apart);
    pass();  // adds to the gradients, then reduces both passes
    read(engine, sum);
    finish_step(engine);
  };
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{kSamples}, {}});
  reads = true;
  engine.train_step(random_batch(model, kSamples, 3, 0).view());
  engine.finish();
  EXPECT_NE(apart[0], apart[1]);
  EXPECT_EQ(sum[1], sum[0]);
  std::vector<float> expected(sum[0].size());
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = 2 * (apart[0][i] + apart[1][i]);
  EXPECT_LT(relative_difference(sum[0], expected), 1e-5);
}

TEST(CustomStep, PartsOutsideAStepAreRefused) {
  const Model model = random_model(9);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, small_config(model, kSamples), {{kSamples}, {}});
  EXPECT_EQ(error_of<OrderError>([&] { engine.forward(); }),
            "forward: no training step has begun; call it from EngineConfig::step, which train_step() runs");
  EXPECT_THROW(engine.backward_and_reduce(true), OrderError);
  EXPECT_THROW(const Engine::NoReductionScope scope(engine), OrderError);
  engine.train_step(random_batch(model, kSamples, 1, 0).view());
  engine.finish();
}

TEST(CustomStep, ForwardWantsAMicroBatchThatThisStepHasStaged) {
  const Model model = random_model(9);
  EngineConfig config = small_config(model, kSamples);
  int steps = 0;
  config.step = [&](Engine& engine, const HostBatch& batch) {
    if (steps++ == 0) return default_step(engine, batch);
    engine.forward();
  };
  DeviceGroup group(test_group(1));
  EXPECT_EQ(error_of<OrderError>([&] {
              Engine(model, group, config, {{kSamples}, {}});
            }),
            "forward: no micro-batch was staged in this step; call stage() first");
}

TEST(CustomStep, TheEngineTrainsAfterAnErrorInTheStep) {
  const Model model = random_model(9);
  EngineConfig config = small_config(model, kSamples);
  bool fails = false;
  config.step = [&fails](Engine& engine, const HostBatch& batch) {
    if (fails) throw ConfigError("planted");
    default_step(engine, batch);
  };
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{kSamples}, {}});
  const std::vector<float> before = engine.parameters().values();
  fails = true;
  EXPECT_THROW(engine.train_step(random_batch(model, kSamples, 1, 0).view()), ConfigError);
  EXPECT_EQ(engine.parameters().values(), before);
  fails = false;
  engine.train_step(random_batch(model, kSamples, 1, 0).view());
  EXPECT_EQ(engine.take_step_results(true).size(), 1U);
  EXPECT_NE(engine.parameters().values(), before);
}

}  // namespace
}  // namespace vitrine::test::custom_step_test
