// SPDX-License-Identifier: Apache-2.0
// Sharded optimizer states and gradients (Scheme::shard): the training of ddp with a part of them on each device.
#include <array>
#include <functional>

#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "nn/parallel/reduce/reducer.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/seeds.h"

namespace vitrine::test::sharding_test {
namespace {

constexpr int64_t kBatch = 12;

EngineConfig config_of(const Model& model, const char* mode, int64_t bucket_bytes) {
  EngineConfig config = small_config(model, kBatch);
  config.scheme = scheme_preset(mode);
  config.optimizer = make_optimizer_config("adamw", 0.01, {}, false, {});
  config.parameter_groups = {{.kind = ParameterGroup::Kind::biases, .lr_factor = 0.5, .weight_decay = 0.0}};
  config.precision.clip_norm = 0.5;
  config.ema_decay = 0.9;
  config.bucket_bytes = config.first_bucket_bytes = bucket_bytes;
  return config;
}

struct Outcome : TrainingOutcome {
  std::vector<float> state1, state2, gradients, averages_of_last;
};

Outcome run(const Model& model, const EngineConfig& config, int devices, size_t steps) {
  Outcome outcome;
  const auto look = [&](Engine& engine) {
    const TrainingState state = engine.checkpointer().state();
    const auto flat = [&](const char* name) {
      const std::span<const float> values = state.flat(name).values();
      return std::vector<float>(values.begin(), values.end());
    };
    outcome.state1 = flat("exp_avg");
    outcome.state2 = flat("exp_avg_sq");
    outcome.averages_of_last = engine.parameters().averages().values(devices - 1);
    outcome.gradients = engine.parameters().gradients(devices - 1);
  };
  static_cast<TrainingOutcome&>(outcome) =
      train(model, devices, config, {.batches = std::vector(steps, kBatch), .seed = 40, .ignored = 0.1, .look = look});
  return outcome;
}

class ShardingStages : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardingStages, TrainAsDdpDoes) {
  constexpr std::array kDevices = {3, 5, 2, 1};
  for (size_t i = 0; i < kDevices.size(); i += kSeedStep) {
    const int devices = kDevices[i];
    for (const int64_t bucket_bytes : {int64_t{512}, int64_t{1} << 20}) {
      SCOPED_TRACE(std::to_string(devices) + " devices, buckets of " + std::to_string(bucket_bytes));
      const Model model = random_model(static_cast<uint32_t>(devices));
      const auto train_in = [&](const char* mode) {
        EngineConfig config = config_of(model, mode, bucket_bytes);
        config.accumulate = devices == 3 ? 2 : 1;
        return run(model, config, devices, 20);
      };
      const Outcome ddp = train_in("ddp"), sharded = train_in(GetParam());
      EXPECT_LT(relative_difference(sharded.weights, ddp.weights), 1e-5);
      EXPECT_LT(relative_difference(sharded.averages_of_last, ddp.averages_of_last), 1e-5);
      EXPECT_LT(relative_difference(sharded.state1, ddp.state1), 1e-4);
      EXPECT_LT(relative_difference(sharded.state2, ddp.state2), 1e-4);
      EXPECT_LT(relative_difference(sharded.gradients, ddp.gradients), 1e-4);
      EXPECT_EQ(train_in(GetParam()).weights, sharded.weights);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Modes, ShardingStages, ::testing::Values("zero1", "zero2", "zero3"),
                         [](const auto& mode) { return std::string(mode.param); });

using Change = std::function<void(EngineConfig&)>;

/// The bits of what a mode trains and evaluates.
///   waits  after each step, so that no forward pass gathers what the others have updated
TrainingOutcome bits_of(const Model& model, const char* mode, const Change& change, bool waits = false) {
  EngineConfig config = config_of(model, mode, 2048);
  change(config);
  return train(model, 3, config,
               {.batches = {kBatch, kBatch, kBatch, 7, kBatch, kBatch},
                .seed = 40,
                .ignored = 0.1,
                .evaluated = 5,
                .waits = waits});
}

void no_samples_on_one(EngineConfig& config) {
  config.scheme.split.kind = Split::Kind::weights;
  config.scheme.split.weights = {3, 0, 2};
}

Change mixed(DType dtype) {
  return [dtype](EngineConfig& config) { compute_in(config, dtype); };
}

std::vector<std::pair<const char*, Change>> changes() {
  return {{"as it is", [](EngineConfig&) {}},
          {"a device without samples", no_samples_on_one},
          {"segments", [](EngineConfig& config) { config.recompute_segments = 2; }},
          {"segments, a device without samples, micro-batches",
           [&](EngineConfig& config) {
             no_samples_on_one(config);
             config.recompute_segments = 2;
             config.accumulate = 3;
           }},
          {"small buckets", [](EngineConfig& config) { config.bucket_bytes = config.first_bucket_bytes = 64; }},
          {"one bucket", [](EngineConfig& config) { config.bucket_bytes = config.first_bucket_bytes = 1 << 24; }},
          {"f16", mixed(DType::f16)},
          {"bf16", mixed(DType::bf16)}};
}

TEST(Sharding, UpdatesReachTheNextForwardPassBitForBit) {
  const Model model = random_model(3), with_batch_norm = tiny_resnet();
  for (const char* mode : {"zero1", "zero2"}) {
    const auto expect_same = [&](const char* name, const Model& of, const Change& change) {
      SCOPED_TRACE(std::string(mode) + ", " + name);
      EXPECT_EQ(bits_of(of, mode, change), bits_of(of, mode, change, true));
    };
    for (const auto& [name, change] : changes()) expect_same(name, model, change);
    expect_same("batch norm, a device without samples", with_batch_norm, no_samples_on_one);
    expect_same("batch norm, bf16", with_batch_norm, mixed(DType::bf16));
  }
}

/// The identity, which fails on a device when it is armed: on the host, or in its stream.
class Fails final : public Identity {
 public:
  struct Trigger {
    int device = -1;
    bool in_stream = false;
  };
  explicit Fails(const Trigger& trigger) : trigger_(trigger) {}

 private:
  void begin(ExecContext& ctx, bool backward) const override {
    if (backward || ctx.ordinal() != trigger_.device) return;
    if (!trigger_.in_stream) throw DataError("planted failure");
    ctx.dispatch({"planted", {}, {}}, [] { throw DataError("planted failure"); });
  }

  const Trigger& trigger_;
};

TEST(Sharding, AFailureBeforeUpdatesHaveReachedAllLosesNone) {
  Fails::Trigger trigger;
  const Model model = planted_model(std::make_unique<Fails>(trigger));
  for (const char* mode : {"zero1", "zero2"}) {
    for (const bool in_stream : {false, true}) {
      if (in_stream && on_gpu()) continue;  // kernels of a GPU throw nothing
      for (int culprit = 0; culprit < 3; ++culprit) {
        SCOPED_TRACE(std::string(mode) + ", device " + std::to_string(culprit) + (in_stream ? ", in its stream" : ""));
        std::vector<std::vector<float>> trained;
        for (const bool fails : {false, true}) {
          DeviceGroup group(test_group(3));
          Engine engine(model, group, config_of(model, mode, 512), {{kBatch}, {}});
          const OwnedBatch batch = random_batch(model, kBatch, 1, 0);
          for (int step = 0; step < 2; ++step) engine.train_step(batch.view());
          group.synchronize();  // no one asks for the parameters
          trigger = {fails ? culprit : -1, in_stream};
          const auto step_and_wait = [&] {
            engine.train_step(batch.view());
            engine.take_step_results(true);
          };
          if (fails) {
            EXPECT_THROW(step_and_wait(), DataError);
          }
          trigger = {};
          for (int d = 0; d < 3; ++d) trained.push_back(engine.parameters().values(d));
          step_and_wait();
          trained.push_back(engine.parameters().values());
        }
        for (size_t d = 0; d < 3; ++d) EXPECT_EQ(trained[4 + d], trained[0]) << "device " << d;
        EXPECT_EQ(trained[7], trained[3]) << "after another step";
      }
    }
  }
}

TEST(Sharding, GatheredParametersAreThoseOfStage2BitForBit) {
  for (const auto& [name, change] : changes()) {
    for (const uint32_t seed : {3U, 8U}) {
      SCOPED_TRACE(std::string(name) + ", model " + std::to_string(seed));
      const Model model = random_model(seed);
      EXPECT_EQ(bits_of(model, "zero3", change), bits_of(model, "zero2", change));
    }
  }
  const Model with_batch_norm = tiny_resnet(), frozen = tiny_resnet();
  frozen.net->freeze({"conv1.*", "layer2.*.conv1.*", "fc.bias"});
  for (const Model* model : {&with_batch_norm, &frozen}) {
    for (const auto& change : {Change(no_samples_on_one), Change(mixed(DType::bf16))}) {
      EXPECT_EQ(bits_of(*model, "zero3", change), bits_of(*model, "zero2", change));
    }
  }
}

TEST(Sharding, TheStatesAreDividedAmongTheDevices) {
  const Model model = make_model("alexnet", {.image_size = 63, .classes = 10});
  const auto planned = [&](const char* mode, int leaves = 0, int accumulate = 1, DType dtype = DType::f32) {
    DeviceGroup group(meta_group(4));
    EngineConfig config = config_of(model, mode, int64_t{25} << 20);
    config.scheme.split.leaves = leaves;
    config.accumulate = accumulate;
    config.precision.compute = dtype;
    return plan_memory(model, group, config, {{kBatch}, {}});
  };
  const auto ddp = planned("ddp"), zero1 = planned("zero1"), zero2 = planned("zero2"), zero3 = planned("zero3");
  const auto states = static_cast<size_t>(Category::optimizer);
  for (size_t d = 0; d < 4; ++d) {
    // Not divided: less than 4 * 64 elements of each of 3 states in each bucket, of which there are fewer than 20.
    const int64_t share = ddp[d].peak_by_category[states] / 4;
    EXPECT_GE(zero1[d].peak_by_category[states], share);
    EXPECT_LT(zero1[d].peak_by_category[states], share + 20 * 3 * 256 * size_of(DType::f32) + 4096);
    EXPECT_EQ(zero2[d].peak_by_category[states], zero1[d].peak_by_category[states]);
    EXPECT_LT(zero2[d].peak_bytes, zero1[d].peak_bytes);
    EXPECT_EQ(zero3[d].peak_by_category[states], zero1[d].peak_by_category[states]);
    EXPECT_LT(zero3[d].peak_bytes, zero2[d].peak_bytes);
  }
  // In 16 bits layers read the whole copy, of half the bytes, and an owner its masters.
  const auto half = planned("zero1", 0, 1, DType::bf16);
  const auto parameters = static_cast<size_t>(Category::parameters);
  const int64_t whole = ddp[0].peak_by_category[parameters];
  for (const auto& device : half)
    EXPECT_LT(device.peak_by_category[parameters], whole / 2 + whole / 4 + 20 * 1024 + 4096);
  // Exact mode: a device of zero1 holds a whole gradient for each of its nodes.
  for (const int accumulate : {1, 2}) {
    const auto exact1 = planned("zero1", 8, accumulate), exact2 = planned("zero2", 8, accumulate),
               exact3 = planned("zero3", 8, accumulate);
    for (size_t d = 0; d < 4; ++d) {
      EXPECT_LT(exact2[d].peak_bytes, exact1[d].peak_bytes);
      EXPECT_LT(exact3[d].peak_bytes, exact2[d].peak_bytes);
    }
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
  refused([](EngineConfig& config) { config.scheme.reduce = ReducerKind::gpu0; });
  refused([](EngineConfig& config) { config.precision.reduce_dtype = DType::bf16; });
  refused([](EngineConfig& config) { config.reducer = make_reducer; });
}

}  // namespace
}  // namespace vitrine::test::sharding_test
