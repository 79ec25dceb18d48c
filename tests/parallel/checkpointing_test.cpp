// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing changes memory and time, but no bit of any result.
#include <random>

#include <gtest/gtest.h>

#include "nn/layers/dropout.h"
#include "nn/layers/flatten.h"
#include "nn/layers/pool2d.h"
#include "nn/layers/residual.h"
#include "nn/parallel/plan/memory_plan.h"
#include "nn/segments.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/seeds.h"

namespace vitrine::test::checkpointing_test {
namespace {

/// Residual blocks, identities between parts, and dropout that works in place.
Model residual_model() {
  const auto body = [](int64_t in, int64_t out) {
    std::vector<Sequential::Part> parts;
    parts.push_back({"conv1", conv(in, out, true)});
    parts.push_back({"conv2", conv(out, out, false)});
    return std::make_unique<Sequential>(std::move(parts));
  };
  const auto projection = [](int64_t in, int64_t out) {
    std::vector<Sequential::Part> parts;
    parts.push_back({"downsample", conv(in, out, false)});
    return std::make_unique<Sequential>(std::move(parts));
  };
  std::vector<Sequential::Part> parts;
  parts.push_back({"stem", conv(2, 4, false)});
  parts.push_back({"pool", std::make_unique<MaxPool2d>(Pool2dConfig{2, 2, 0}, true)});
  parts.push_back({"same", std::make_unique<AdaptiveAvgPool2d>(4, 4)});
  parts.push_back({"block1", std::make_unique<Residual>(body(4, 4), nullptr, true)});
  parts.push_back({"drop1", std::make_unique<Dropout>(0.3F, 0)});
  parts.push_back({"block2", std::make_unique<Residual>(body(4, 6), projection(4, 6), true)});
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"drop2", std::make_unique<Dropout>(0.4F, 1)});
  parts.push_back({"fc1", linear(96, 12, true)});
  parts.push_back({"drop3", std::make_unique<Dropout>(0.4F, 2)});
  parts.push_back({"fc2", linear(12, 5, false)});
  return image_model("residual", 8, 2, 5, std::move(parts));
}

Model model_of(uint32_t seed) {
  switch (seed % 7) {
    case 0:
      return residual_model();
    case 6:
      return tiny_resnet();
    case 1:
      return make_model("small-cnn", {.image_size = 8});
    case 2:
      return make_model("lenet5", {.image_size = 14, .channels = 1});
    case 3:
      return make_model("mlp", {.image_size = 6});
    case 4:
      return make_model("wide-head", {.image_size = 5, .channels = 4, .classes = 7});
    default:
      return random_model(seed);
  }
}

TrainingOutcome run(const Model& model, int devices, const EngineConfig& config) {
  return train(model, devices, config,
               {.batches = std::vector(3, config.batch_size), .ignored = 0.1, .evaluated = 4, .first_gradients = true});
}

class Checkpointing : public ::testing::TestWithParam<uint32_t> {};

TEST_P(Checkpointing, GivesTheSameBits) {
  const uint32_t seed = GetParam();
  std::mt19937 random(seed);
  const Model model = model_of(seed);
  const int parts = static_cast<int>(model.net->computing_parts(model.input_shape(1), Pass{}).size());
  EngineConfig config = small_config(model, 6 + static_cast<int64_t>(random() % 6));
  config.scheme = scheme_preset(scheme_names()[seed % scheme_names().size()]);
  config.accumulate = 1 + static_cast<int>(random() % 2);
  if (model.targets_per_sample > 1) config.image_dtype = model.sample_dtype();
  for (const DType compute : {DType::f32, DType::f16}) {
    config.precision = Precision();
    compute_in(config, compute);
    const int devices = 1 + static_cast<int>(random() % 3);
    if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = devices == 1 ? config.batch_size : 2;
    config.recompute_segments = 1;
    config.loss_gradient_in_place = true;
    const TrainingOutcome whole = run(model, devices, config);
    for (const int segments : {2, square_root_segments(*model.net, model.input_shape(1)), parts}) {
      config.recompute_segments = segments;
      config.loss_gradient_in_place = !config.loss_gradient_in_place;
      EXPECT_TRUE(run(model, devices, config) == whole)
          << model.name << " in " << segments << " segments on " << devices << " devices in " << dtype_name(compute);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Checkpointing, ::testing::Range(0U, 12U, kSeedStep));

std::vector<DevicePlan> plan(const Model& model, int devices, const char* mode, int64_t batch_size, int segments,
                             bool in_place = true) {
  const DeviceGroup group(meta_group(devices));
  EngineConfig config = small_config(model, batch_size);
  config.scheme = scheme_preset(mode);
  config.image_dtype = DType::f32;
  config.recompute_segments = segments;
  config.loss_gradient_in_place = in_place;
  return plan_memory(model, group, config, {{batch_size}, {}});
}

int64_t activations(const DevicePlan& plan) {
  return plan.peak_by_category[static_cast<size_t>(Category::activations)];
}

TEST(Segments, ReduceTheMemoryOfDeepModels) {
  for (const char* name : {"alexnet", "vgg16"}) {
    const Model model = make_model(name, {});
    const int segments = square_root_segments(*model.net, model.input_shape(1));
    const DevicePlan whole = plan(model, 1, "ddp", 64, 1)[0], cut = plan(model, 1, "ddp", 64, segments)[0];
    EXPECT_LT(cut.peak_bytes, whole.peak_bytes) << name;
    EXPECT_LT(activations(cut), activations(whole)) << name;
  }
}

TEST(Segments, BeginAtThePartsThatKeepMost) {
  const Model model = make_model("vgg16", {});
  const std::vector<PartRange> recomputed = cut_in_segments(*model.net, model.input_shape(64), DType::f32, 4);
  ASSERT_EQ(recomputed.size(), 3U);
  EXPECT_EQ(recomputed[0].begin, 0);
  for (size_t s = 1; s < recomputed.size(); ++s) EXPECT_EQ(recomputed[s].begin, recomputed[s - 1].end);
  // Large images come first: of 21 parts that compute, equal counts would give the first segment five or six.
  EXPECT_LE(recomputed[0].end, 4);
  EXPECT_EQ(square_root_segments(*model.net, model.input_shape(1)), 5);
  EXPECT_TRUE(cut_in_segments(*model.net, model.input_shape(1), DType::f32, 1).empty());
}

TEST(Segments, MoreThanPartsAreRefused) {
  const Model model = make_model("mlp", {.image_size = 6});
  DeviceGroup group(test_group(1));
  EngineConfig config = small_config(model, 4);
  for (const int segments : {4, 0}) {
    config.recompute_segments = segments;
    expect_contains(error_of<ConfigError>([&] {
                      const Engine engine(model, group, config, {{4}, {}});
                    }),
                    "recompute segments: got " + std::to_string(segments));
  }
  config.recompute_segments = 3;
  EXPECT_NO_THROW(Engine(model, group, config, {{4}, {}}));
}

TEST(Segments, AreTimedAsRecompute) {
  const Model model = make_model("small-cnn", {.image_size = 8});
  for (const int segments : {1, 3}) {
    DeviceGroupOptions options = test_group(1);
    options.trace = TraceLevel::phase;
    DeviceGroup group(options);
    EngineConfig config = small_config(model, 4);
    config.recompute_segments = segments;
    Engine engine(model, group, config, {{4}, {}});
    engine.train_step(random_batch(model, 4, 1, 0).view());
    engine.finish();
    int recomputed = 0;
    for (const SpanRecord& span : group[0].compute().stream().take_spans()) {
      if (span.info.phase != Phase::recompute) continue;
      ++recomputed;
      EXPECT_EQ(span.depth, 1) << "not within backward";
      EXPECT_GT(span.end_ns, span.begin_ns);
    }
    EXPECT_EQ(recomputed, segments - 1);
  }
}

// Memory of a step over 40,000 classes on the device where outputs are gathered.
TEST(WideHead, UnderDpDevice0HoldsOutputsAndTheirGradientMayReuseThem) {
  const Model model = make_model("wide-head", {});
  constexpr int64_t kOutputs = int64_t{32} * 250 * 40000 * 4;
  const DevicePlan over = plan(model, 4, "dp", 32, 1)[0], beside = plan(model, 4, "dp", 32, 1, false)[0];
  // Without memory for the gradient the peak is a little later, when other blocks are held.
  EXPECT_NEAR(static_cast<double>(beside.peak_bytes - over.peak_bytes), kOutputs, kOutputs * 0.01);
  EXPECT_GE(activations(over), kOutputs);
  EXPECT_LT(activations(over), kOutputs + kOutputs / 10);
  for (const DevicePlan& device : plan(model, 4, "criterion", 32, 1))
    EXPECT_LT(activations(device), kOutputs / 4 + kOutputs / 10);
}

TEST(WideHead, TrainsEquallyUnderEverySchemeAndSplit) {
  const Model model = make_model("wide-head", {.image_size = 6, .channels = 4, .classes = 9});
  EngineConfig config = small_config(model, 7);
  config.image_dtype = DType::f32;
  const TrainingOutcome reference = run(model, 1, config);
  for (const char* mode : {"dp", "criterion", "ddp"}) {
    for (const char* split : {"equal", "2,0,3", "gpu0=1"}) {
      config.scheme = scheme_preset(mode);
      config.scheme.split = parse_split(split);
      for (const int accumulate : {1, 3}) {
        config.accumulate = accumulate;
        const TrainingOutcome result = run(model, 3, config);
        EXPECT_LT(relative_difference(result.first_gradients, reference.first_gradients), 1e-5)
            << mode << ", split " << split;
        EXPECT_LT(relative_difference(result.weights, reference.weights), 1e-5) << mode << ", split " << split;
        for (size_t i = 0; i < reference.losses.size(); ++i)
          EXPECT_NEAR(result.losses[i], reference.losses[i], 1e-5 * reference.losses[i]);
      }
    }
  }
}

TEST(WideHead, EvaluatesEveryTarget) {
  const Model model = make_model("wide-head", {.image_size = 6, .channels = 4, .classes = 9});
  DeviceGroup group(test_group(2));
  EngineConfig config = small_config(model, 4);
  config.image_dtype = DType::f32;
  Engine engine(model, group, config, {{4}, {5}});
  std::vector<float> logits;
  EXPECT_EQ(engine.evaluate(random_batch(model, 5, 1, 0, DType::f32).view(), &logits).valid, 30);
  EXPECT_EQ(logits.size(), 30U * 9U);
  OwnedBatch wrong = random_batch(model, 4, 1, 0, DType::f32);
  wrong.label_shape = {4};
  EXPECT_THROW(engine.train_step(wrong.view()), ShapeError);
}

// A merged ReLU at the end needs its output in backward: the gradient may not be written over it.
TEST(LossGradient, IsSeparateIfTheLastPartNeedsItsOutput) {
  for (const bool drops : {false, true}) {
    Model model{.name = "relu at the end", .height = 4, .width = 4, .channels = 1, .classes = 5, .net = nullptr};
    std::vector<Sequential::Part> parts;
    parts.push_back({"flatten", std::make_unique<Flatten>()});
    parts.push_back({"fc", linear(16, 5, true)});
    if (drops) parts.push_back({"drop", std::make_unique<Dropout>(0.5F, 0)});
    model.net = std::make_unique<Sequential>(std::move(parts));
    for (const char* mode : {"dp", "ddp"}) {
      EngineConfig config = small_config(model, 6);
      config.scheme = scheme_preset(mode);
      const TrainingOutcome in_place = run(model, 2, config);
      config.loss_gradient_in_place = false;
      EXPECT_TRUE(run(model, 2, config) == in_place) << mode;
    }
  }
}

}  // namespace
}  // namespace vitrine::test::checkpointing_test
