// SPDX-License-Identifier: Apache-2.0
// A device that is lost in the middle of a step: the others go on with the bits of a run without the loss.
#include <functional>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/parallel/device_losses.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::device_loss_test {
namespace {

TEST(DeviceLoss, LeavesTheBitsOfConvolutionsAndDropout) {
  expect_one_hash_in_spite_of_losses(random_model(1), DType::f32, 2, 5, 1);
}

TEST(DeviceLoss, LeavesTheBitsOfBatchNormAndLossScaling) {
  expect_one_hash_in_spite_of_losses(tiny_resnet(), DType::f16, 1, 5, 50);
}

/// The identity, until work of one device throws.
class Planted final : public Identity {
 public:
  struct Trigger {
    int device = -1;
    bool backward = false;
  };
  explicit Planted(Trigger& trigger) : trigger_(trigger) {}

 private:
  void begin(ExecContext& ctx, bool backward) const override {
    if (ctx.ordinal() != trigger_.device || backward != trigger_.backward) return;
    trigger_.device = -1;  // once
    ctx.dispatch({"planted", {}, {}}, [] { throw DeviceError("planted loss"); });
  }
  Trigger& trigger_;
};

EngineConfig exact_config(const Model& model, bool survives) {
  EngineConfig config = small_config(model, 12);
  config.scheme.split.leaves = 6;
  config.survive_device_loss = survives;
  return config;
}

TEST(DeviceLoss, BetweenTwoLayersIsSurvivedByOneDevice) {
  Planted::Trigger trigger;
  const Model model = planted_model(std::make_unique<Planted>(trigger));
  const auto train = [&](bool loses) {
    DeviceGroup group(test_group(3));
    Engine engine(model, group, exact_config(model, true), {{12}, {}});
    for (uint32_t step = 0; step < 4; ++step) {
      if (loses && step > 0) trigger = {static_cast<int>(step) % 2, step == 2};
      engine.train_step(random_batch(model, 12, step, 0).view());
    }
    const std::vector<float> values = engine.parameters().values();
    EXPECT_EQ(engine.take_step_results(true).size(), 4U);
    const std::vector<DeviceLoss>& losses = engine.facts().losses;
    if (loses && losses.size() == 2) {
      EXPECT_EQ(losses[0].device, "cpu:1");
      EXPECT_EQ(losses[0].error, "cpu:1: planted loss");
      EXPECT_EQ(group.size(), 1);
    } else {
      EXPECT_FALSE(loses) << losses.size();
    }
    engine.finish();
    return values;
  };
  const std::vector<float> expected = train(false);
  trigger = {};
  EXPECT_EQ(train(true), expected);
}

TEST(DeviceLoss, OfTheOnlyDeviceOrWithoutSurvivalEndsTheStep) {
  Planted::Trigger trigger;
  const Model model = planted_model(std::make_unique<Planted>(trigger));
  for (const bool survives : {false, true}) {
    DeviceGroup group(test_group(survives ? 1 : 2));
    Engine engine(model, group, exact_config(model, survives), {{12}, {}});
    const std::vector<float> before = engine.parameters().values();
    trigger.device = 0;
    const std::string error = error_of<DeviceError>([&] {
      engine.train_step(random_batch(model, 12, 1, 0).view());
      engine.take_step_results(true);
    });
    EXPECT_EQ(error, "cpu:0: planted loss");
    EXPECT_EQ(engine.parameters().values(), before);
    engine.train_step(random_batch(model, 12, 1, 0).view());  // it was no loss for good
    EXPECT_EQ(engine.take_step_results(true).size(), 1U);
  }
}

TEST(DeviceLoss, AnotherErrorIsNone) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, exact_config(model, true), {{12}, {}});
  OwnedBatch batch = random_batch(model, 12, 1, 0);
  batch.memory->labels[7] = 17;
  EXPECT_THROW(
      {
        engine.train_step(batch.view());
        engine.take_step_results(true);
      },
      DataError);
  EXPECT_EQ(group.size(), 2);
  batch.memory->labels[7] = 1;
  engine.train_step(batch.view());
  EXPECT_EQ(engine.take_step_results(true).size(), 1U);
}

TEST(DeviceLoss, TheOthersHaveRoomOrTheEngineIsRefused) {
  const Model model = tiny_resnet();
  const EngineConfig config = exact_config(model, true);
  int64_t needed = 0;
  {
    DeviceGroup group(test_group(2));
    const Engine engine(model, group, config, {{12}, {}});
    needed = engine.facts().plans.front().peak_bytes;
  }
  DeviceGroupOptions options = test_group(2);
  options.memory_bytes = {needed};
  DeviceGroup group(options);
  expect_contains(error_of<OutOfMemory>([&] {
                    Engine(model, group, config, {{12}, {}});
                  }),
                  "without cpu:0, cpu:1 needs ", "EngineConfig::survive_device_loss");
  const Engine engine(model, group, exact_config(model, false), {{12}, {}});
}

TEST(DeviceLoss, IsRefusedWhereADeviceHoldsWhatTheOthersLack) {
  const Model model = random_model(1);
  const auto error = [&](const std::function<void(EngineConfig&)>& change) {
    EngineConfig config = exact_config(model, true);
    change(config);
    DeviceGroup group(test_group(2));
    return error_of<ConfigError>([&] { Engine(model, group, config, Workload{{12}, {}}); });
  };
  expect_contains(error([](EngineConfig& c) { c.scheme.split.leaves = 0; }), "exact mode");
  expect_contains(error([](EngineConfig& c) { c.scheme.reduce = Reduce::gpu0; }), "ddp");
  expect_contains(error([](EngineConfig& c) { c.scheme.shard = Sharding::optimizer; }), "ddp");
}

}  // namespace
}  // namespace vitrine::test::device_loss_test
