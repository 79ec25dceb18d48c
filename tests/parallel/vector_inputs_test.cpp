// SPDX-License-Identifier: Apache-2.0
// Models whose samples are not images.

#include <gtest/gtest.h>

#include "nn/layers/dropout.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::vector_inputs_test {
namespace {

/// Linear(features -> 24) with ReLU, dropout, Linear(-> 5).
Model vector_model(const Shape& sample_shape) {
  const int64_t features = sample_shape[sample_shape.rank() - 1];
  std::vector<Sequential::Part> parts;
  parts.push_back({"hidden", linear(features, 24, true)});
  parts.push_back({"dropout", std::make_unique<Dropout>(0.25F, 0)});
  parts.push_back({"output", linear(24, 5)});
  Model model;
  model.name = "vectors";
  model.sample_shape = sample_shape;
  model.classes = 5;
  model.targets_per_sample = sample_shape.numel() / features;
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

EngineConfig vector_config(const Model& model, int64_t batch_size) {
  EngineConfig config = small_config(model, batch_size);
  config.image_dtype = DType::f32;
  return config;
}

const TrainingCase kTraining{.batches = {12, 12, 12, 7}, .ignored = 0.2, .evaluated = 9};

class VectorInputs : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modes, VectorInputs, ::testing::ValuesIn(scheme_names()),
                         [](const auto& mode) { return mode.param; });

TEST_P(VectorInputs, TrainLikeOneDevice) {
  for (const Shape& sample_shape : {Shape{13}, Shape{3, 6}}) {
    const Model model = vector_model(sample_shape);
    const TrainingOutcome one = train(model, 1, vector_config(model, 12), kTraining);
    for (const DType compute : {DType::f32, DType::bf16}) {
      EngineConfig config = vector_config(model, 12);
      config.scheme = scheme_preset(GetParam());
      if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = 2;
      config.accumulate = 2;
      config.precision.compute = compute;
      const TrainingOutcome several = train(model, 3, config, kTraining);
      const double tolerance = compute == DType::f32 ? 1e-5 : 1e-2;
      EXPECT_LT(relative_difference(several.weights, one.weights), tolerance) << sample_shape.str();
      EXPECT_LT(relative_difference(several.logits, one.logits), 5 * tolerance) << sample_shape.str();
    }
  }
}

TEST(VectorInputs, MustBeF32AndHaveTheShapeOfTheModel) {
  const Model model = vector_model({13});
  DeviceGroup group(test_group(1));
  const EngineConfig images = small_config(model, 12);
  expect_contains(error_of([&] { Engine(model, group, images, {{12}, {}}); }), "set it to DType::f32");
  Engine engine(model, group, vector_config(model, 12), {{12}, {9}});
  const OwnedBatch wrong = random_batch(vector_model({14}), 12, 1, 0, DType::f32);
  const std::string text = error_of([&] { engine.train_step(wrong.view()); });
  expect_contains(text, "train_step: inputs have shape (12, 14) and dtype f32, expected (12, 13) and f32");
  expect_contains(error_of([&] { engine.evaluate(random_batch(model, 9, 1, 0, DType::u8).view()); }),
                  "evaluate: inputs have");
}

}  // namespace
}  // namespace vitrine::test::vector_inputs_test
