// SPDX-License-Identifier: Apache-2.0
// Training on images in the form that the first layer wants equals training on the images.
#include <algorithm>
#include <array>
#include <cctype>

#include <gtest/gtest.h>

#include "nn/layers/conv2d.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/parallel/engine_setup.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/seeds.h"

namespace vitrine::test::input_form_test {
namespace {

constexpr int64_t kBatch = 11;

enum class First {
  pooled,    // AlexNet's: the maximum after it applies the ReLU and computes the gradient of the bias
  relu,      // a strided window with a merged ReLU
  stride_1,  // channels of zeros
  bare,      // no ReLU and nothing that computes the gradient of the bias
};

Model model_with(First first) {
  Model model;
  model.name = "first-convolution";
  model.height = 23;
  model.width = 19;
  model.channels = 3;
  model.classes = 5;
  std::vector<Sequential::Part> parts;
  Shape shape = model.input_shape(1);
  const auto add = [&](const char* name, std::unique_ptr<Layer> layer) {
    shape = layer->output_shape(shape);
    parts.push_back({name, std::move(layer)});
  };
  Conv2dLayerConfig conv{.in_channels = 3, .out_channels = 8, .window = 11, .conv = {4, 2, false}};
  if (first == First::relu) {
    conv.window = 7;
    conv.conv = {2, 3, true};
  }
  if (first == First::stride_1) {
    conv.window = 3;
    conv.conv = {1, 1, true};
  }
  add("conv", std::make_unique<Conv2d>(conv));
  if (first == First::bare) {
    add("conv2", std::make_unique<Conv2d>(
                     Conv2dLayerConfig{.in_channels = 8, .out_channels = 8, .window = 3, .conv = {1, 1, true}}));
  }
  add("pool", std::make_unique<MaxPool2d>(Pool2dConfig{3, 2, 0}, true));
  add("flatten", std::make_unique<Flatten>());
  add("fc", std::make_unique<Linear>(LinearConfig{.in_features = shape[1], .out_features = model.classes}));
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

/// Trains with the images in a form, and as they are. A pixel's products are the same, and their sums are rounded in
/// another order.
void expect_equal(const Model& model, int devices, EngineConfig config, double tolerance, const std::string& what) {
  std::vector<int64_t> peaks;
  const auto run = [&](InputPacking packing) {
    config.input_packing = packing;
    return train(model, devices, config,
                 {.batches = {kBatch, kBatch, kBatch},
                  .seed = 1,
                  .evaluated = kBatch,
                  .first_gradients = true,
                  .look = [&](Engine& engine) {
                    EXPECT_EQ(static_cast<bool>(engine.facts().input_form), packing == InputPacking::on);
                    peaks.push_back(engine.facts().plans[0].peak_bytes);
                  }});
  };
  const TrainingOutcome plain = run(InputPacking::off), formed = run(InputPacking::on);
  EXPECT_LT(relative_difference(formed.first_gradients, plain.first_gradients), tolerance) << what;
  EXPECT_LT(relative_difference(formed.weights, plain.weights), tolerance) << what;
  ASSERT_EQ(formed.losses.size(), plain.losses.size());
  for (size_t i = 0; i < plain.losses.size(); ++i)
    EXPECT_NEAR(formed.losses[i], plain.losses[i], tolerance * plain.losses[i]) << what << ", " << i;
  EXPECT_NEAR(formed.test_loss, plain.test_loss, tolerance * plain.test_loss) << what;
  EXPECT_NE(peaks[0], peaks[1]) << what << ": the plan does not know the form";
  EXPECT_EQ(run(InputPacking::on).weights, formed.weights) << "not the same bits: " << what;
}

class EngineInputForm : public ::testing::TestWithParam<std::string> {
 protected:
  EngineConfig config_of(const Model& model) const {
    EngineConfig config = small_config(model, kBatch);
    config.scheme = scheme_preset(GetParam());
    if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = 4;
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Schemes, EngineInputForm, ::testing::ValuesIn(scheme_names()), [](const auto& scheme) {
  std::string name = scheme.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST_P(EngineInputForm, TrainsLikeTheImages) {
  constexpr std::array kFirst = {First::pooled, First::relu, First::stride_1, First::bare};
  for (size_t i = 0; i < kFirst.size(); i += kSeedStep) {
    const First first = kFirst[i];
    const Model model = model_with(first);
    for (const int accumulate : {1, 3}) {
      EngineConfig config = config_of(model);
      config.accumulate = accumulate;
      expect_equal(model, 2, config, 2e-5,
                   "layer " + std::to_string(static_cast<int>(first)) + ", accumulate " + std::to_string(accumulate));
    }
  }
}

TEST_P(EngineInputForm, TrainsLikeTheImagesIn16Bits) {
  const Model model = model_with(First::pooled);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    EngineConfig config = config_of(model);
    config.precision.compute = dtype;
    expect_equal(model, 2, config, dtype == DType::f16 ? 1e-2 : 5e-2, dtype_name(dtype));
  }
}

TEST(InputFormTraining, WorksWithRecomputationAugmentationAndResizedImages) {
  const Model model = model_with(First::pooled);
  EngineConfig config = small_config(model, kBatch);
  config.augmentation = {true, 2, 5};
  config.recompute = {"conv-pool"};
  expect_equal(model, 2, config, 2e-5, "recomputed");
  config = small_config(model, kBatch);
  config.recompute_segments = 3;
  expect_equal(model, 1, config, 2e-5, "in segments");
}

TEST(InputFormTraining, TheRuleDecidesByDtypeAndBackend) {
  const Model model = model_with(First::pooled);
  for (const DType dtype : {DType::f32, DType::f16}) {
    DeviceGroup group(test_group(1));
    EngineConfig config = small_config(model, kBatch);
    config.precision.compute = dtype;
    EXPECT_EQ(static_cast<bool>(input_form(model, group, config)), on_gpu() && dtype == DType::f16);
    EXPECT_EQ(Engine(model, group, config, {{kBatch}, {}}).facts().input_form, input_form(model, group, config));
  }
}

TEST(InputFormTraining, InputsThatTheUserPreparesStayAsTheyAre) {
  const Model model = model_with(First::pooled);
  DeviceGroup group(test_group(1));
  EngineConfig config = small_config(model, kBatch);
  config.image_dtype = DType::f32;
  config.input_packing = InputPacking::on;
  Engine engine(model, group, config, {{kBatch}, {}});
  EXPECT_FALSE(engine.facts().input_form);
  engine.train_step(random_batch(model, kBatch, 1, 0.0, DType::f32).view());
  EXPECT_GT(engine.take_step_results(true).at(0).mean_loss(), 0.0);
  engine.finish();
}

}  // namespace
}  // namespace vitrine::test::input_form_test
