// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test::augmentation_test {
namespace {

constexpr int64_t kBatch = 12;

OwnedBatch batch_of(const Model& model, uint32_t step) { return random_batch(model, kBatch, 50 + step, 0.0); }

/// Three steps and an evaluation.
TrainingOutcome run(const Model& model, int devices, const EngineConfig& config) {
  return train(model, devices, config, {.batches = {kBatch, kBatch, kBatch}, .seed = 50, .evaluated = kBatch});
}

EngineConfig augmented(const Model& model, const Augmentation& augmentation) {
  EngineConfig config = small_config(model, kBatch);
  config.augmentation = augmentation;
  return config;
}

/// Training on images that the test has changed beforehand gives the same bits.
TEST(AugmentationEngine, TrainsOnTheImagesOfDrawAugmentation) {
  const Model model = random_model(3);
  const EngineConfig config = augmented(model, {true, 3, 0});
  const TrainingOutcome device = run(model, 1, config);
  DeviceGroup group(test_group(1));
  Engine engine(model, group, augmented(model, {}), {{kBatch}, {kBatch}});
  const int64_t height = model.height, width = model.width, channels = model.channels;
  for (uint32_t step = 0; step < 3; ++step) {
    const OwnedBatch batch = batch_of(model, step);
    const std::vector<uint8_t> stored = batch.memory->bytes;
    for (int64_t n = 0; n < kBatch; ++n) {
      const AugmentationDraw draw = draw_augmentation(config.augmentation, {config.seed, 9},
                                                      batch.memory->samples[static_cast<size_t>(n)], height, width);
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) {
          const int64_t row = y + draw.top, column = (draw.flip ? width - 1 - x : x) + draw.left;
          const bool inside = row >= 0 && row < height && column >= 0 && column < width;
          for (int64_t c = 0; c < channels; ++c) {
            const auto at = [&](int64_t i, int64_t j) {
              return static_cast<size_t>(((n * height + i) * width + j) * channels + c);
            };
            batch.memory->bytes[at(y, x)] = inside ? stored[at(row, column)] : uint8_t{0};
          }
        }
      }
    }
    engine.train_step(batch.view());
  }
  EXPECT_EQ(engine.parameters().values(), device.weights);
}

TEST(AugmentationEngine, EverySchemeAndSplitDrawsTheSame) {
  const Model model = random_model(4);
  EngineConfig config = augmented(model, {true, 2, 4});
  const TrainingOutcome one = run(model, 1, config);
  for (const std::string& scheme : scheme_names()) {
    for (const char* split : {"equal", "3,1,0"}) {
      config.scheme = scheme_preset(scheme);
      config.scheme.split = parse_split(split);
      config.accumulate = scheme == "dp" ? 2 : 1;
      const TrainingOutcome three = run(model, 3, config);
      EXPECT_LT(relative_difference(three.weights, one.weights), 1e-4) << scheme << " " << split;
      for (size_t i = 0; i < one.losses.size(); ++i)
        EXPECT_NEAR(three.losses[i], one.losses[i], 1e-4) << scheme << " " << split;
    }
  }
  EXPECT_GT(relative_difference(run(model, 1, augmented(model, {})).weights, one.weights), 1e-3);
}

/// In evaluation the images are as they are: before the first step, test losses with and without augmentation are
/// equal.
TEST(AugmentationEngine, LeavesEvaluationAlone) {
  const Model model = random_model(5);
  const auto test_loss = [&](const Augmentation& augmentation) {
    DeviceGroup group(test_group(2));
    Engine engine(model, group, augmented(model, augmentation), {{kBatch}, {kBatch}});
    return engine.evaluate(batch_of(model, 7).view()).mean_loss();
  };
  EXPECT_EQ(test_loss({true, 4, 4}), test_loss({}));
}

TEST(AugmentationEngine, RefusesBatchesWithoutSampleIndicesOrEpochAndPreparedImages) {
  const Model model = random_model(6);
  DeviceGroup group(test_group(1));
  EngineConfig config = augmented(model, {true, 0, 0});
  Engine engine(model, group, config, {{kBatch}, {}});
  HostBatch batch = batch_of(model, 1).view();
  const ConstView samples = batch.samples;
  batch.samples = {};
  EXPECT_THROW(engine.train_step(batch), ConfigError);
  batch.samples = samples.rows(0, 3);
  EXPECT_THROW(engine.train_step(batch), ShapeError);
  batch.samples = samples;
  for (const int64_t epoch : {int64_t{-1}, int64_t{1} << 40}) {
    batch.epoch = epoch;
    EXPECT_THROW(engine.train_step(batch), ConfigError);
  }
  config.image_dtype = DType::f32;
  EXPECT_THROW(plan_memory(model, group, config, {{kBatch}, {}}), ConfigError);
  config = augmented(model, {false, 1000, 0});
  EXPECT_THROW(plan_memory(model, group, config, {{kBatch}, {}}), ConfigError);
}

}  // namespace
}  // namespace vitrine::test::augmentation_test
