// SPDX-License-Identifier: Apache-2.0
// Models whose samples are not images.
#include <algorithm>

#include <gtest/gtest.h>

#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test::vector_inputs_test {
namespace {

/// Linear(features -> 24) with ReLU, dropout, Linear(-> 5).
Model vector_model(const Shape& sample_shape) {
  LinearConfig first, last;
  first.in_features = sample_shape[sample_shape.rank() - 1];
  first.out_features = last.in_features = 24;
  first.relu = true;
  last.out_features = 5;
  std::vector<Sequential::Part> parts;
  parts.push_back({"hidden", std::make_unique<Linear>(first)});
  parts.push_back({"dropout", std::make_unique<Dropout>(0.25F, 0)});
  parts.push_back({"output", std::make_unique<Linear>(last)});
  Model model;
  model.name = "vectors";
  model.sample_shape = sample_shape;
  model.classes = 5;
  model.targets_per_sample = sample_shape.numel() / first.in_features;
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

EngineConfig vector_config(const Model& model, int64_t batch_size) {
  EngineConfig config = small_config(model, batch_size);
  config.image_dtype = DType::f32;
  return config;
}

struct Result {
  std::vector<float> weights, logits;
};

Result train(const Model& model, int devices, const EngineConfig& config) {
  DeviceGroup group(test_group(devices));
  Engine engine(model, group, config, {{12, 7}, {9}});
  for (uint32_t step = 0; step < 4; ++step) {
    engine.train_step(random_batch(model, step == 3 ? 7 : 12, step, 0.2, DType::f32).view());
    engine.take_step_results(true);
  }
  Result result;
  engine.evaluate(random_batch(model, 9, 9, 0, DType::f32).view(), &result.logits);
  result.weights = engine.parameters().values();
  for (int d = 1; d < devices; ++d)
    EXPECT_EQ(engine.parameters().working_values(d), engine.parameters().working_values(0)) << "replica " << d;
  engine.finish();  // asserts that the plan was met to the byte
  return result;
}

class VectorInputs : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modes, VectorInputs, ::testing::ValuesIn(scheme_names()),
                         [](const auto& mode) { return mode.param; });

TEST_P(VectorInputs, TrainLikeOneDevice) {
  for (const Shape& sample_shape : {Shape{13}, Shape{3, 6}}) {
    const Model model = vector_model(sample_shape);
    const Result one = train(model, 1, vector_config(model, 12));
    for (const DType compute : {DType::f32, DType::bf16}) {
      EngineConfig config = vector_config(model, 12);
      config.scheme = scheme_preset(GetParam());
      if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = 2;
      config.accumulate = 2;
      config.precision.compute = compute;
      const Result several = train(model, 3, config);
      const double tolerance = compute == DType::f32 ? 1e-5 : 1e-2;
      EXPECT_LT(relative_difference(several.weights, one.weights), tolerance) << sample_shape.str();
      EXPECT_LT(relative_difference(several.logits, one.logits), 5 * tolerance) << sample_shape.str();
    }
  }
}

TEST(VectorInputs, MustBeF32AndHaveTheShapeOfTheModel) {
  const Model model = vector_model({13});
  DeviceGroup group(test_group(1));
  const auto message = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const EngineConfig images = small_config(model, 12);
  EXPECT_NE(message([&] { Engine(model, group, images, {{12}, {}}); }).find("set it to DType::f32"), std::string::npos);
  Engine engine(model, group, vector_config(model, 12), {{12}, {9}});
  const OwnedBatch wrong = random_batch(vector_model({14}), 12, 1, 0, DType::f32);
  const std::string text = message([&] { engine.train_step(wrong.view()); });
  EXPECT_NE(text.find("train_step: inputs have shape (12, 14) and dtype f32, expected (12, 13) and f32"),
            std::string::npos)
      << text;
  EXPECT_NE(
      message([&] { engine.evaluate(random_batch(model, 9, 1, 0, DType::u8).view()); }).find("evaluate: inputs have"),
      std::string::npos);
}

}  // namespace
}  // namespace vitrine::test::vector_inputs_test
