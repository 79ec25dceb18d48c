// SPDX-License-Identifier: Apache-2.0
// Models of tokens, whose output layer shares the weight of the embedding: the sum of both gradients is complete at the
// end of backward only.
#include <functional>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::tokens_test {
namespace {

EngineConfig token_config(const Model& model, const std::string& mode) {
  EngineConfig config = small_config(model, 12);
  config.scheme = scheme_preset(mode);
  if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = 2;
  config.image_dtype = DType::i32;
  return config;
}

const TrainingCase kTraining{.batches = {12, 12, 12, 7}, .ignored = 0.2, .evaluated = 9};

class Tokens : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modes, Tokens, ::testing::ValuesIn(scheme_names()),
                         [](const auto& mode) { return mode.param; });

TEST_P(Tokens, TrainLikeOneDevice) {
  const Model model = tiny_gpt();
  const TrainingOutcome one = train(model, 1, token_config(model, "ddp"), kTraining);
  using Change = std::function<void(EngineConfig&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"as it is", [](EngineConfig&) {}},
      {"accumulated", [](EngineConfig& config) { config.accumulate = 2; }},
      {"block recomputed", [](EngineConfig& config) { config.recompute = {"h.0"}; }},
      {"all but the last recomputed", [](EngineConfig& config) { config.recompute_segments = 2; }},
      {"output layer recomputed", [](EngineConfig& config) { config.recompute = {"h.1-lm_head"}; }},
      {"one bucket", [](EngineConfig& config) { config.bucket_bytes = config.first_bucket_bytes = 1 << 24; }},
      {"bf16", [](EngineConfig& config) { compute_in(config, DType::bf16); }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    EngineConfig config = token_config(model, GetParam());
    change(config);
    const TrainingOutcome several = train(model, 3, config, kTraining);
    const double tolerance = config.precision.mixed() ? 1e-2 : 1e-5;
    EXPECT_LT(relative_difference(several.weights, one.weights), tolerance);
    EXPECT_LT(relative_difference(several.logits, one.logits), 10 * tolerance);
  }
}

TEST_P(Tokens, HaveOneHashInExactMode) {
  const Model model = tiny_gpt();
  const auto run = [&](const std::string& mode, int devices, int accumulate) {
    EngineConfig config = token_config(model, mode);
    config.scheme.split = parse_split("equal");
    if (mode == "balanced") config.scheme.split = parse_split(devices == 1 ? "gpu0=12" : "gpu0=2");
    config.scheme.split.leaves = 4;
    config.accumulate = accumulate;
    return train(model, devices, config, kTraining);
  };
  const TrainingOutcome expected = run("ddp", 1, 1);
  for (const auto& [devices, accumulate] : {std::pair{1, 2}, {2, 1}, {3, 2}}) {
    const TrainingOutcome outcome = run(GetParam(), devices, accumulate);
    EXPECT_EQ(outcome.weights, expected.weights) << devices << " devices, accumulate " << accumulate;
    EXPECT_EQ(outcome.losses, expected.losses) << devices << " devices, accumulate " << accumulate;
  }
}

TEST(TokensInBackward, UpdatesHaveTheBitsOfTheOrdinaryStep) {
  const Model model = tiny_gpt();
  for (const char* mode : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const int devices : {1, 3}) {
      EngineConfig config = token_config(model, mode);
      const TrainingOutcome ordinary = train(model, devices, config, kTraining);
      config.update_in_backward = true;
      EXPECT_EQ(train(model, devices, config, kTraining).weights, ordinary.weights) << mode << ", " << devices;
    }
  }
}

TEST(TokensFrozen, ASharedWeightStaysAsItIs) {
  Model model = tiny_gpt();
  model.net->freeze({"wte.weight"});
  for (const char* mode : {"ddp", "zero3"}) {
    const EngineConfig config = token_config(model, mode);
    std::vector<float> before, after;
    const auto look_at = [&](std::vector<float>& values) {
      return [&](Engine& engine) {
        const FlatLayout& layout = engine.parameters().layout();
        const std::vector<float> all = engine.parameters().values();
        const auto first = all.begin() + layout.offset(0);
        ASSERT_EQ(layout.specs()[0].name, "wte.weight");
        values.assign(first, first + layout.specs()[0].shape.numel());
      };
    };
    TrainingCase some = kTraining;
    some.look = look_at(after);
    train(model, 2, config, some);
    EngineConfig still = config;
    still.optimizer = make_optimizer_config("sgd", 0.0, {}, false, {});
    TrainingCase one{.batches = {12}, .look = look_at(before)};
    train(model, 2, still, one);
    EXPECT_EQ(after, before) << mode;
  }
}

TEST(TokensInput, MustBeI32AndKnown) {
  const Model model = tiny_gpt();
  DeviceGroup group(test_group(1));
  EngineConfig config = token_config(model, "ddp");
  config.image_dtype = DType::f32;
  expect_contains(error_of([&] { Engine(model, group, config, {{12}, {}}); }), "set it to DType::i32");
  config.image_dtype = DType::i32;
  Engine engine(model, group, config, {{12}, {}});
  const OwnedBatch batch = random_batch(model, 12, 1, 0, DType::i32);
  batch.memory->tokens[17] = 11;
  const std::string text = error_of([&] {
    engine.train_step(batch.view());
    engine.take_step_results(true);
  });
  expect_contains(text, "row 11 at place 17 is out of range, expected 0 <= row < 11");
}

}  // namespace
}  // namespace vitrine::test::tokens_test
