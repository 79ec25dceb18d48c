// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "data/loader.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::resident_images_test {
namespace {

constexpr int64_t kImages = 41, kBatch = 12;  // the last batch of an epoch has 5 samples

Dataset random_set(const Model& model) {
  Dataset set;
  set.name = "random";
  set.height = model.height;
  set.width = model.width;
  set.channels = model.channels;
  set.classes = model.classes;
  const OwnedBatch images = random_batch(model, kImages, 77, 0.0);
  set.samples = samples_in_memory(images.memory->bytes, images.memory->labels);
  return set;
}

ResidentImages images_of(const Dataset& set) {
  return {set.size(), [&set](int64_t first, const View& images) {
            const auto bytes = static_cast<size_t>(set.bytes_per_image());
            for (int64_t i = 0; i < images.shape[0]; ++i) {
              set.read_image(first + i, std::span(images.as<uint8_t>() + static_cast<size_t>(i) * bytes, bytes));
            }
          }};
}

EngineConfig augmented(const Model& model) {
  EngineConfig config = small_config(model, kBatch);
  config.augmentation = {true, 2, 3};
  return config;
}

const Workload& two_sizes() {
  static const Workload workload{{kBatch, kImages % kBatch}, {kBatch}};
  return workload;
}

struct Result {
  std::vector<double> losses;
  std::vector<float> weights;
  double test_loss = 0.0;
};

/// Two epochs and an evaluation.
Result run(const Model& model, const Dataset& set, int devices, const EngineConfig& config) {
  DeviceGroup group(test_group(devices));
  Engine engine(model, group, config, two_sizes());
  const bool resident = config.resident_images.count > 0;
  Loader loader(set, {.batch_size = kBatch,
                      .seed = 5,
                      .epochs = 2,
                      .queue_batches = 6,
                      .host_memory = group.host_memory(),
                      .sample_indices = true,
                      .images = !resident,
                      .checker = group.checker()});
  while (const auto batch = loader.next()) engine.train_step(*batch);
  Result result;
  for (const StepResult& step : engine.take_step_results(true)) result.losses.push_back(step.mean_loss());
  result.test_loss = engine.evaluate(random_batch(model, kBatch, 3, 0.0).view()).mean_loss();
  result.weights = engine.parameters().values();
  for (int d = 1; d < devices; ++d) EXPECT_EQ(engine.parameters().values(d), result.weights) << "replica " << d;
  engine.finish();  // asserts that the plan was met to the byte
  return result;
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.losses.size(), 8U) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
  EXPECT_EQ(a.test_loss, b.test_loss) << what;
}

TEST(ResidentImages, TrainWithTheBitsOfImagesFromTheHost) {
  for (const uint32_t seed : {3U, 4U}) {
    const Model model = random_model(seed);
    const Dataset set = random_set(model);
    for (const Augmentation& augmentation : {Augmentation{}, Augmentation{true, 2, 3}}) {
      EngineConfig config = augmented(model);
      config.augmentation = augmentation;
      const Result host = run(model, set, 1, config);
      config.resident_images = images_of(set);
      expect_same(run(model, set, 1, config), host, "seed " + std::to_string(seed));
    }
  }
}

TEST(ResidentImages, TrainWithTheSameBitsUnderEverySchemeAndSplit) {
  const Model model = random_model(4);
  const Dataset set = random_set(model);
  for (const std::string& scheme : scheme_names()) {
    for (const char* split : {"equal", "3,1,0"}) {
      EngineConfig config = augmented(model);
      config.scheme = scheme_preset(scheme);
      config.scheme.split = parse_split(split);
      config.scheme.output_device = config.scheme.loss_at == LossAt::gathered ? 1 : 0;
      config.accumulate = scheme == "dp" ? 2 : 1;
      const Result host = run(model, set, 3, config);
      config.resident_images = images_of(set);
      expect_same(run(model, set, 3, config), host, scheme + " " + split);
    }
  }
}

TEST(ResidentImages, LieOnEachDeviceThatTakesItsBatchFromTheHost) {
  const Model model = random_model(4);
  const Dataset set = random_set(model);
  for (const std::string& scheme : scheme_names()) {
    EngineConfig config = augmented(model);
    config.scheme = scheme_preset(scheme);
    config.scheme.split = parse_split("equal");
    config.resident_images = images_of(set);
    DeviceGroup group(test_group(3));
    const std::vector<DevicePlan> plans = plan_memory(model, group, config, two_sizes());
    for (size_t d = 0; d < plans.size(); ++d) {
      const int64_t planned = plans[d].peak_by_category[static_cast<size_t>(Category::dataset)];
      if (config.scheme.staging == Staging::device0 && d > 0) {
        EXPECT_EQ(planned, 0) << scheme << " device " << d;
      } else {
        EXPECT_GE(planned, kImages * set.bytes_per_image()) << scheme << " device " << d;
        EXPECT_LT(planned, kImages * set.bytes_per_image() + 1024) << scheme << " device " << d;
      }
    }
  }
}

TEST(ResidentImages, ThatDoNotFitAreNamedWithARemedyBeforeTraining) {
  const Model model = random_model(4);
  const Dataset set = random_set(model);
  EngineConfig config = augmented(model);
  DeviceGroupOptions options = test_group(1);
  {
    DeviceGroup group(options);
    options.memory_bytes = {plan_memory(model, group, config, two_sizes())[0].peak_bytes};
  }
  config.resident_images = images_of(set);
  config.resident_images.read = [](int64_t, const View&) { FAIL() << "images were read although they do not fit"; };
  DeviceGroup group(options);
  expect_contains(error_of<OutOfMemory>([&] { const Engine engine(model, group, config, two_sizes()); }), "dataset ",
                  "EngineConfig::resident_images off");
  config.resident_images = {};
  Engine(model, group, config, two_sizes());
}

/// The search for the first value that is not finite runs the step again.
TEST(ResidentImages, DivergenceIsFoundInTheSameLayer) {
  const Model model = random_model(4);
  const Dataset set = random_set(model);
  EngineConfig config = augmented(model);
  config.optimizer.set_learning_rate(1e30);
  const auto message = [&] { return error_of<DivergedError>([&] { run(model, set, 2, config); }); };
  const std::string host = message();
  EXPECT_NE(host, "");
  config.resident_images = images_of(set);
  EXPECT_EQ(message(), host);
}

TEST(ResidentImages, ABatchMayBringItsOwnImages) {
  const Model model = random_model(3);
  const Dataset set = random_set(model);
  EngineConfig config = augmented(model);
  const auto weights = [&](bool resident, bool mixed) {
    config.resident_images = resident ? images_of(set) : ResidentImages{};
    DeviceGroup group(test_group(2));
    Engine engine(model, group, config, two_sizes());
    Loader loader(set, {.batch_size = kBatch,
                        .epochs = 1,
                        .queue_batches = 6,
                        .host_memory = group.host_memory(),
                        .sample_indices = true});
    while (auto batch = loader.next()) {
      if (mixed && batch->index % 2 == 0) batch->images = {};
      engine.train_step(*batch);
    }
    return engine.parameters().values();
  };
  const std::vector<float> host = weights(false, false);
  EXPECT_EQ(weights(true, false), host);
  EXPECT_EQ(weights(true, true), host);
}

TEST(ResidentImages, RefusesWrongBatches) {
  const Model model = random_model(3);
  const Dataset set = random_set(model);
  EngineConfig config = augmented(model);
  config.augmentation = {};
  config.resident_images = images_of(set);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{kBatch}, {kBatch}});
  const OwnedBatch owned = random_batch(model, kBatch, 0, 0.0);
  std::vector<int32_t>& samples = owned.memory->samples;
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int32_t>(i);
  HostBatch batch = owned.view();
  batch.images = {};
  EXPECT_THROW(engine.evaluate(batch), ShapeError);
  for (const int32_t wrong : {-1, static_cast<int32_t>(kImages)}) {
    samples[7] = wrong;
    expect_contains(error_of<ConfigError>([&] { engine.train_step(batch); }),
                    "sample index " + std::to_string(wrong) + " in row 7");
  }
  samples[7] = kImages - 1;
  engine.train_step(batch);
  engine.take_step_results(true);
  batch.samples = batch.samples.rows(0, 3);
  EXPECT_THROW(engine.train_step(batch), ShapeError);
  batch.samples = {};
  EXPECT_THROW(engine.train_step(batch), ConfigError);

  config.resident_images = {};
  DeviceGroup other(test_group(1));
  Engine without(model, other, config, {{kBatch}, {}});
  batch = owned.view();
  batch.images = {};
  EXPECT_THROW(without.train_step(batch), ShapeError);
}

TEST(ResidentImages, RefusesWrongConfigurations) {
  const Model model = random_model(3);
  const Dataset set = random_set(model);
  const auto plan = [&](const EngineConfig& config, const Workload& workload = two_sizes()) {
    DeviceGroup group(test_group(1));
    plan_memory(model, group, config, workload);
  };
  EngineConfig config = small_config(model, kBatch);
  config.resident_images = images_of(set);
  EXPECT_NO_THROW(plan(config));
  config.image_dtype = DType::f32;
  EXPECT_THROW(plan(config), ConfigError);
  config.image_dtype = DType::u8;
  config.resident_images.count = int64_t{1} << 31;
  EXPECT_THROW(plan(config), ConfigError);
  config.resident_images = {kImages, {}};
  EXPECT_THROW(plan(config), ConfigError);
  config.resident_images = images_of(set);
  config.forward_only = true;
  EXPECT_THROW(plan(config, {{}, {kBatch}}), ConfigError);
}

TEST(ResidentImages, AnErrorOfTheReaderEndsTheConstruction) {
  const Model model = random_model(3);
  EngineConfig config = small_config(model, kBatch);
  config.resident_images = {kImages, [](int64_t, const View&) { throw DataError("the file is gone"); }};
  DeviceGroup group(test_group(2));
  EXPECT_THROW(Engine(model, group, config, two_sizes()), DataError);
  config.resident_images = {};
  Engine(model, group, config, two_sizes());
}

}  // namespace
}  // namespace vitrine::test::resident_images_test
