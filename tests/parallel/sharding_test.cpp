// SPDX-License-Identifier: Apache-2.0
// Sharded optimizer states and gradients (Scheme::shard): the training of ddp with a part of them on each device.
#include <limits>

#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "nn/parallel/reduce/reducer.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

constexpr int64_t kBatch = 12;

EngineConfig config_of(const Model& model, const char* mode, int64_t bucket_bytes) {
  EngineConfig config = small_config(model, kBatch);
  config.scheme = scheme_preset(mode);
  config.optimizer = make_optimizer_config("adamw", 0.01, {}, false, {});
  config.parameter_groups = {{.of = ParameterGroup::Of::biases, .lr_factor = 0.5, .weight_decay = 0.0}};
  config.precision.clip_norm = 0.5;
  config.ema_decay = 0.9;
  config.bucket_bytes = config.first_bucket_bytes = bucket_bytes;
  return config;
}

struct Outcome {
  std::vector<float> parameters, averages, state1, state2, gradients;
};

Outcome train(const Model& model, const EngineConfig& config, int devices, int steps) {
  DeviceGroup group(test_group(devices));
  Engine engine(model, group, config, {{kBatch}, {}});
  for (int step = 0; step < steps; ++step)
    engine.train_step(random_batch(model, kBatch, 40 + static_cast<uint32_t>(step), 0.1).view());
  const TrainingState state = engine.checkpointer().state();
  const auto flat = [&](const char* name) {
    const std::span<const float> values = state.flat(name).values();
    return std::vector<float>(values.begin(), values.end());
  };
  Outcome outcome{engine.parameters().values(), engine.parameters().averages().values(devices - 1), flat("exp_avg"),
                  flat("exp_avg_sq"), engine.parameters().gradients(devices - 1)};
  for (int d = 1; d < devices; ++d) EXPECT_EQ(engine.parameters().values(d), outcome.parameters) << "replica " << d;
  engine.finish();  // asserts that the plan was met to the byte
  return outcome;
}

class ShardingStages : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardingStages, TrainAsDdpDoes) {
  for (const int devices : {1, 2, 3, 5}) {
    for (const int64_t bucket_bytes : {int64_t{512}, int64_t{1} << 20}) {
      SCOPED_TRACE(std::to_string(devices) + " devices, buckets of " + std::to_string(bucket_bytes));
      const Model model = random_model(static_cast<uint32_t>(devices));
      const auto train_in = [&](const char* mode) {
        EngineConfig config = config_of(model, mode, bucket_bytes);
        config.accumulate = devices == 3 ? 2 : 1;
        return train(model, config, devices, 20);
      };
      const Outcome ddp = train_in("ddp"), sharded = train_in(GetParam());
      EXPECT_LT(relative_difference(sharded.parameters, ddp.parameters), 1e-5);
      EXPECT_LT(relative_difference(sharded.averages, ddp.averages), 1e-5);
      EXPECT_LT(relative_difference(sharded.state1, ddp.state1), 1e-4);
      EXPECT_LT(relative_difference(sharded.state2, ddp.state2), 1e-4);
      EXPECT_LT(relative_difference(sharded.gradients, ddp.gradients), 1e-4);
      EXPECT_EQ(train_in(GetParam()).parameters, sharded.parameters);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Modes, ShardingStages, ::testing::Values("zero1", "zero2"),
                         [](const auto& mode) { return std::string(mode.param); });

TEST(Sharding, TheStatesAreDividedAmongTheDevices) {
  const Model model = make_model("alexnet", {.image_size = 63, .classes = 10});
  const auto planned = [&](const char* mode) {
    DeviceGroup group({.devices = {{Backend::meta, 0}, {Backend::meta, 1}, {Backend::meta, 2}, {Backend::meta, 3}},
                       .memory_bytes = std::vector<int64_t>(4, int64_t{1} << 40)});
    return plan_memory(model, group, config_of(model, mode, int64_t{25} << 20), {{kBatch}, {}});
  };
  const auto ddp = planned("ddp"), zero1 = planned("zero1"), zero2 = planned("zero2");
  const auto states = static_cast<size_t>(Category::optimizer);
  for (size_t d = 0; d < 4; ++d) {
    // Not divided: less than 4 * 64 elements of each of 3 states in each bucket, of which there are fewer than 20.
    const int64_t share = ddp[d].peak_by_category[states] / 4;
    EXPECT_GE(zero1[d].peak_by_category[states], share);
    EXPECT_LT(zero1[d].peak_by_category[states], share + 20 * 3 * 256 * size_of(DType::f32) + 4096);
    EXPECT_EQ(zero2[d].peak_by_category[states], zero1[d].peak_by_category[states]);
    EXPECT_LT(zero2[d].peak_bytes, zero1[d].peak_bytes);
  }
}

TEST(Sharding, WhatItCannotDoIsRefused) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(2));
  const auto refused = [&](const auto& change) {
    EngineConfig config = config_of(model, "zero1", 512);
    change(config);
    EXPECT_THROW(Engine(model, group, config, {{kBatch}, {}}), ConfigError);
  };
  refused([](EngineConfig& config) { config.scheme.reduce = Reduce::gpu0; });
  refused([](EngineConfig& config) { config.precision.reduce_dtype = DType::bf16; });
  refused([](EngineConfig& config) { config.reducer = make_reducer; });
  refused([](EngineConfig& config) {
    config.scheme.shard = Sharding::gradients;
    config.scheme.split.leaves = 4;
  });
}

}  // namespace
}  // namespace vitrine::test
