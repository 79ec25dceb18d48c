// SPDX-License-Identifier: Apache-2.0
// Mistakes that a user of the library makes in the first hour: what the message says.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "nn/model.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/gradient_error.h"
#include "nn/parallel/scheme.h"
#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

constexpr int64_t kBatch = 12;

class LibraryMistakes : public ::testing::Test {
 protected:
  static DeviceGroupOptions two_devices() {
    DeviceGroupOptions options;
    options.devices = parse_device_list("cpu:0-1", 0);
    options.memory_bytes = {int64_t{16} << 20};
    return options;
  }

  static EngineConfig vectors() {
    EngineConfig config;
    config.batch_size = kBatch;
    config.image_dtype = DType::f32;
    config.workspace_bytes = int64_t{1} << 20;
    return config;
  }

  /// `samples` samples of four numbers with labels of three classes.
  static HostBatch batch(int64_t samples, DType label_dtype = DType::i32) {
    struct Arrays {
      std::vector<float> x;
      std::vector<int64_t> labels;
    };
    const auto arrays = std::make_shared<Arrays>();
    for (int64_t i = 0; i < samples * 4; ++i) arrays->x.push_back(0.25F * static_cast<float>(i % 7) - 0.5F);
    arrays->labels.assign(static_cast<size_t>(samples), 0);
    HostBatch made;
    made.images = ConstView(arrays->x.data(), {samples, 4}, DType::f32, DeviceId::host());
    made.labels = ConstView(arrays->labels.data(), {samples}, label_dtype, DeviceId::host());
    made.hold = arrays;
    return made;
  }

  template <class E>
  std::string construction_error(const Model& model, const EngineConfig& config) {
    return error_of<E>([&] { Engine(model, devices_, config, {.train_batches = {kBatch}}); });
  }

  DeviceGroup devices_{two_devices()};
};

TEST_F(LibraryMistakes, AForgottenSampleShapeIsNamed) {
  Model model = make_mlp({4, 8, 3});
  model.sample_shape = {};
  expect_contains(construction_error<ConfigError>(model, vectors()), "sample_shape is not set; set it to {F}");
}

TEST_F(LibraryMistakes, OtherClassesThanTheLastLayerHas) {
  Model model = make_mlp({4, 8, 3});
  model.classes = 2;
  expect_contains(construction_error<ShapeError>(model, vectors()), "returns (1, 3) for one sample", "of 2 classes");
}

TEST_F(LibraryMistakes, ForgottenFieldsOfAModelAndANegativeLearningRate) {
  Model model = make_mlp({4, 8, 3});
  model.classes = 0;
  expect_contains(construction_error<ConfigError>(model, vectors()), "has 0 classes; set Model::classes");
  model.sample_shape = {};
  EngineConfig config;  // of u8 images
  config.batch_size = kBatch;
  expect_contains(construction_error<ConfigError>(model, config), "sample_shape is not set");
  config = vectors();
  config.optimizer.set_learning_rate(-1.0);
  expect_contains(construction_error<ConfigError>(make_mlp({4, 8, 3}), config), "learning rate is -1");
}

TEST_F(LibraryMistakes, VectorsThatAreSaidToBeBytes) {
  EngineConfig config = vectors();
  config.image_dtype = DType::u8;
  expect_contains(construction_error<ConfigError>(make_mlp({4, 8, 3}), config), "which are not images",
                  "set it to DType::f32");
}

TEST_F(LibraryMistakes, ABatchOfASizeThatWasNotPlanned) {
  const Model model = make_mlp({4, 8, 3});
  Engine engine(model, devices_, vectors(), {.train_batches = {kBatch}});
  expect_contains(error_of<Error>([&] { engine.train_step(batch(kBatch - 1)); }), "11 samples was not planned",
                  "add it to the engine's workload");
}

TEST_F(LibraryMistakes, LabelsOfAnotherType) {
  const Model model = make_mlp({4, 8, 3});
  Engine engine(model, devices_, vectors(), {.train_batches = {kBatch}});
  expect_contains(error_of<DtypeError>([&] { engine.train_step(batch(kBatch, DType::f32)); }),
                  "labels are f32, expected i32");
}

TEST_F(LibraryMistakes, LabelsThatAreMissing) {
  const Model model = make_mlp({4, 8, 3});
  Engine engine(model, devices_, vectors(), {.train_batches = {kBatch}});
  HostBatch given = batch(kBatch);
  given.labels = given.labels.rows(0, kBatch / 2);
  expect_contains(error_of<ShapeError>([&] { engine.train_step(given); }), "6 rows of labels for 12 images");
  given = batch(kBatch);
  given.images.shape = {};
  expect_contains(error_of<ShapeError>([&] { engine.train_step(given); }), "inputs have shape ()");
  given.labels = {};
  expect_contains(error_of<ShapeError>([&] { engine.train_step(given); }), "no labels; set HostBatch::labels, i32");
}

TEST_F(LibraryMistakes, ATensorThatWasMovedFrom) {
  ExecContext& ctx = devices_[0].compute();
  Tensor from = ctx.allocate({4}, DType::f32, Category::activations, "x");
  const Tensor to = std::move(from);
  EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): what a use finds
  EXPECT_EQ(from.numel(), ConstView().numel());
  EXPECT_THROW(copy(ctx, from, to), ShapeError);
}

TEST_F(LibraryMistakes, AnMlpOfOneSize) {
  expect_contains(error_of<ConfigError>([] { make_mlp({20}); }), "[20]", "two or more");
}

TEST_F(LibraryMistakes, APlanIsATableAndGradientsAreChecked) {
  const Model model = make_mlp({4, 8, 3});
  Engine engine(model, devices_, vectors(), {.train_batches = {kBatch}, .evaluate_batches = {kBatch}});
  expect_contains(engine.plan_table(), "planned", "parameters", "\ncpu:0", "\ncpu:1");
  const HostBatch right = batch(kBatch);
  EXPECT_LT(gradient_error(engine, right, "fc2.bias"), 1e-2);
  expect_contains(error_of<ConfigError>([&] { gradient_error(engine, right, "fc3.bias"); }), "no parameter fc3.bias");
}

TEST_F(LibraryMistakes, CountsOfAScatterAreAListInBraces) {
  const auto ranks = make_communicators(devices_);
  const Tensor whole = devices_[0].communication().allocate({8}, DType::f32, Category::staging, "whole");
  zero(devices_[0].communication(), whole);
  for (int d = 0; d < 2; ++d) {
    ExecContext& ctx = devices_[d].communication();
    const Tensor part = ctx.allocate({d == 0 ? 3 : 5}, DType::f32, Category::staging, "part");
    ranks[static_cast<size_t>(d)]->scatter(ctx, d == 0 ? ConstView(whole) : ConstView(), {3, 5}, part, 0);
  }
  devices_.synchronize();
}

}  // namespace
}  // namespace vitrine
