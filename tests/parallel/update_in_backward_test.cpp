// SPDX-License-Identifier: Apache-2.0
// EngineConfig::update_in_backward: the bits of the ordinary step, with the gradients of one or two buckets at a time.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "nn/parallel/reduce/reducer.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/seeds.h"

namespace vitrine::test::update_in_backward_test {
namespace {

constexpr int64_t kBatch = 12, kShort = 7;

EngineConfig config_of(const Model& model, const std::string& mode) {
  EngineConfig config = small_config(model, kBatch);
  config.scheme = scheme_preset(mode);
  config.optimizer = make_optimizer_config("adamw", 0.01, {}, false, {});
  config.ema_decay = 0.9;
  config.bucket_bytes = config.first_bucket_bytes = 2048;
  return config;
}

TrainingOutcome run(const Model& model, EngineConfig config, int devices, bool in_backward) {
  config.update_in_backward = in_backward;
  TrainingOutcome trained =
      train(model, devices, config,
            {.batches = {kBatch, kBatch, kBatch, kShort, kBatch, kBatch}, .seed = 40, .ignored = 0.1});
  for (const StepResult& step : trained.steps)
    EXPECT_EQ(std::isnan(step.gradient_norm), in_backward || config.allow_non_finite);
  return trained;
}

class UpdateInBackward : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Modes, UpdateInBackward, ::testing::Values("ddp", "zero1", "zero2", "zero3"),
                         [](const auto& mode) { return std::string(mode.param); });

TEST_P(UpdateInBackward, HasTheBitsOfTheOrdinaryStep) {
  using Change = std::function<void(EngineConfig&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"as it is", [](EngineConfig&) {}},
      {"groups",
       [](EngineConfig& config) {
         config.parameter_groups = {{.kind = ParameterGroup::Kind::biases, .lr_factor = 0.5, .weight_decay = 0.0}};
       }},
      {"sgd", [](EngineConfig& config) { config.optimizer = make_optimizer_config("sgd", 0.01, 0.9, true, 0.1); }},
      {"segments", [](EngineConfig& config) { config.recompute_segments = 2; }},
      {"small buckets", [](EngineConfig& config) { config.bucket_bytes = config.first_bucket_bytes = 64; }},
      {"one bucket", [](EngineConfig& config) { config.bucket_bytes = config.first_bucket_bytes = 1 << 24; }},
      {"non-finite numbers allowed", [](EngineConfig& config) { config.allow_non_finite = true; }},
      {"bf16", [](EngineConfig& config) { config.precision.compute = DType::bf16; }}};
  for (const size_t devices : {1, 2, 3}) {
    for (size_t i = devices % kSeedStep; i < changes.size(); i += kSeedStep) {
      const auto& [name, change] = changes[i];
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(devices) + " devices");
      const Model model = random_model(static_cast<uint32_t>(devices) + 3);
      EngineConfig config = config_of(model, GetParam());
      change(config);
      const auto train_with = [&](bool in_backward) {
        return run(model, config, static_cast<int>(devices), in_backward);
      };
      EXPECT_EQ(train_with(true), train_with(false));
    }
  }
  const Model with_batch_norm = tiny_resnet(), frozen = tiny_resnet();
  frozen.net->freeze({"conv1.*", "layer2.*.conv1.*", "fc.bias"});
  for (const Model* model : {&with_batch_norm, &frozen}) {
    EngineConfig config = config_of(*model, GetParam());
    config.scheme.split.kind = Split::Kind::weights;
    config.scheme.split.weights = {3, 0, 2};  // a device without samples
    EXPECT_EQ(run(*model, config, 3, true), run(*model, config, 3, false));
  }
}

TEST(UpdateInBackwardMemory, HoldsTheGradientsOfABucket) {
  const auto planned = [](const Model& model, int64_t bucket_bytes, const char* mode, int devices, bool in_backward) {
    DeviceGroup group(meta_group(devices));
    EngineConfig config = config_of(model, mode);
    config.bucket_bytes = bucket_bytes;
    config.update_in_backward = in_backward;
    return plan_memory(model, group, config, {{kBatch}, {}})[0];
  };
  const auto gradients = static_cast<size_t>(Category::gradients);
  // The layers of a ResNet's last block are reduced one by one; the block before it has a projection.
  for (const auto& [name, image_size, bucket_bytes, together] :
       {std::tuple{"alexnet", 63, int64_t{25} << 20, "no part"}, {"resnet18", 32, int64_t{1} << 20, "layer4.0."}}) {
    const Model model = make_model(name, {.image_size = image_size, .classes = 10});
    int64_t largest = 0, in_block = 0;
    for (const ParamSpec& spec : model.net->parameters()) {
      largest = std::max(largest, spec.shape.numel() * 4);
      if (spec.name.starts_with(together)) in_block += spec.shape.numel() * 4;
    }
    largest = std::max(largest, in_block);
    for (const auto& [mode, devices] : {std::pair{"ddp", 1}, {"ddp", 4}, {"zero1", 4}}) {
      const DevicePlan before = planned(model, bucket_bytes, mode, devices, false),
                       after = planned(model, bucket_bytes, mode, devices, true);
      // The largest layer's weight is a bucket; its bias is in another.
      EXPECT_LE(after.peak_by_category[gradients], std::max(largest, 2 * bucket_bytes) + 20000) << name << mode;
      EXPECT_LT(after.peak_bytes, before.peak_bytes - before.peak_by_category[gradients] / 4) << name << mode;
    }
  }
}

TEST(UpdateInBackwardMemory, OneByteLessIsRefused) {
  const Model model = random_model(5);
  EngineConfig config = config_of(model, "ddp");
  config.update_in_backward = true;
  DeviceGroup probe(test_group(2));
  DeviceGroupOptions options = test_group(2);
  options.memory_bytes.clear();
  for (const DevicePlan& plan : plan_memory(model, probe, config, {{kBatch}, {}}))
    options.memory_bytes.push_back(plan.peak_bytes);
  {
    DeviceGroup group(options);
    Engine engine(model, group, config, {{kBatch}, {}});
    for (uint32_t step = 0; step < 3; ++step) engine.train_step(random_batch(model, kBatch, step, 0.1).view());
    engine.finish();
  }
  --options.memory_bytes[1];
  DeviceGroup group(options);
  EXPECT_THROW(Engine(model, group, config, {{kBatch}, {}}), OutOfMemory);
}

TEST_P(UpdateInBackward, ANonFiniteGradientStopsAllDevicesAndSaysWhatIsLost) {
  ReturnsInfinity::Trigger trigger;
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  for (const int devices : {1, 3}) {
    DeviceGroup group(test_group(devices));
    EngineConfig config = config_of(model, GetParam());
    config.bucket_bytes = config.first_bucket_bytes = 64;
    config.update_in_backward = true;
    Engine engine(model, group, config, {{kBatch}, {}});
    const OwnedBatch batch = random_batch(model, kBatch, 1, 0);
    engine.train_step(batch.view());
    engine.take_step_results(true);
    const std::vector<float> before = engine.parameters().values();
    trigger = {true, devices - 1};
    engine.train_step(batch.view());
    trigger.armed = false;
    engine.train_step(batch.view());  // in flight when the divergence is found
    const std::string text = error_of<DivergedError>([&] { engine.take_step_results(true); });
    expect_contains(text, "the update of step 2 is not finite for some parameters",
                    "start from a checkpoint of an earlier step");
    // Backward finishes fc2 before the planted layer, and fc1 after it.
    expect_contains(text, "Backward has updated fc2.bias to fc2.weight (2 of 4 parameters), and");
    const std::vector<StepResult> totals = engine.take_step_results(true);
    ASSERT_EQ(totals.size(), 1U) << "the step after it has none";
    EXPECT_TRUE(totals[0].diverged);
    const std::vector<float> after = engine.parameters().values();
    const FlatLayout& layout = engine.parameters().layout();
    for (int i = 0; i < layout.size(); ++i) {
      const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
      int64_t kept = 0;
      for (auto at = static_cast<size_t>(layout.offset(i)), n = size_t{0}; n < static_cast<size_t>(spec.shape.numel());
           ++n)
        kept += after[at + n] == before[at + n] ? 1 : 0;
      EXPECT_EQ(kept > 0, spec.name.starts_with("fc1")) << spec.name << " keeps " << kept;
    }
    EXPECT_TRUE(std::all_of(after.begin(), after.end(), [](float v) { return std::isfinite(v); }));
    engine.parameters().verify();
    engine.finish();
  }
}

TEST_P(UpdateInBackward, ANonFiniteLossChangesNothing) {
  ReturnsInfinity::Trigger trigger;
  const Model model = planted_model(std::make_unique<ReturnsInfinity>(trigger));
  DeviceGroup group(test_group(2));
  EngineConfig config = config_of(model, GetParam());
  config.update_in_backward = true;
  Engine engine(model, group, config, {{kBatch}, {}});
  const std::vector<float> before = engine.parameters().values();
  trigger.device = 1;
  trigger.forward_step = 0;
  engine.train_step(random_batch(model, kBatch, 1, 0).view());
  const std::string text = error_of<DivergedError>([&] { engine.take_step_results(true); });
  expect_contains(text, "the loss of step 1 is not finite");
  EXPECT_EQ(text.find("clip"), std::string::npos) << "it is refused: " << text;
  EXPECT_EQ(engine.parameters().values(), before);
}

TEST(UpdateInBackwardRefusals, NameWhatIsInTheWay) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(2));
  const auto refused = [&](const char* why, const auto& change) {
    EngineConfig config = config_of(model, "ddp");
    config.update_in_backward = true;
    change(config);
    const std::string text = error_of<ConfigError>([&] { Engine(model, group, config, {{kBatch}, {}}); });
    expect_contains(text, "EngineConfig::update_in_backward: ", why);
  };
  refused("clipping", [](EngineConfig& config) { config.precision.clip_norm = 1.0; });
  refused("loss scaling", [](EngineConfig& config) {
    config.precision.compute = DType::f16;
    config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  });
  refused("micro-batches", [](EngineConfig& config) { config.accumulate = 2; });
  refused("16 bits", [](EngineConfig& config) { config.precision.reduce_dtype = DType::bf16; });
  refused("device 0", [](EngineConfig& config) { config.scheme = scheme_preset("criterion"); });
  refused("EngineConfig::reducer", [](EngineConfig& config) { config.reducer = make_reducer; });
  refused("exact mode", [](EngineConfig& config) { config.scheme.split.leaves = 4; });
  EngineConfig config = config_of(model, "ddp");
  config.update_in_backward = true;
  Engine engine(model, group, config, {{kBatch}, {}});
  expect_contains(error_of<ConfigError>([&] { engine.parameters().gradients(0); }), "freed");
}

}  // namespace
}  // namespace vitrine::test::update_in_backward_test
