// SPDX-License-Identifier: Apache-2.0
// Batch norm under every scheme: statistics over the whole micro-batch, or on each device as in PyTorch.
#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "nn/layers/batch_norm2d.h"
#include "nn/layers/flatten.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/paths.h"
#include "tests/support/seeds.h"

namespace vitrine::test::batch_norm_test {
namespace {

constexpr uint32_t kSteps = 3;

/// Three steps, the last one on a shorter batch, and an evaluation.
TrainingOutcome run(const Model& model, int devices, const EngineConfig& config, uint32_t seed = 1) {
  return train(model, devices, config,
               {.batches = {config.batch_size, config.batch_size, config.batch_size * 2 / 3},
                .seed = seed * 100,
                .ignored = 0.2,
                .evaluated = 4,
                .first_gradients = true});
}

class ExactBatchNorm : public ::testing::TestWithParam<uint32_t> {};

TEST_P(ExactBatchNorm, EqualsOneDeviceUnderEverySchemeAndSplit) {
  const uint32_t seed = GetParam();
  std::mt19937 random(seed);
  const Model model = tiny_resnet(seed % 2 == 1);
  EngineConfig config = small_config(model, 12 + static_cast<int64_t>(random() % 4));
  config.accumulate = 1 + static_cast<int>(random() % 2);
  const TrainingOutcome one = run(model, 1, config, seed);
  const int64_t micro_batches = kSteps * config.accumulate;
  EXPECT_EQ(one.counters, std::vector<int64_t>(one.counters.size(), micro_batches));
  for (const std::string& name : scheme_names()) {
    const int devices = 2 + static_cast<int>(random() % 3);
    config.scheme = scheme_preset(name);
    Split& split = config.scheme.split;
    if (random() % 2 == 0) {
      split.kind = Split::Kind::weights;  // a device may have no sample at all
      split.weights.assign(static_cast<size_t>(devices), 1.0);
      split.weights[random() % split.weights.size()] = 0;
      split.weights[0] += static_cast<double>(random() % 3);
    } else if (split.kind == Split::Kind::gpu0) {
      split.gpu0 = static_cast<int64_t>(random() % 4);
    }
    const std::string what = name + ", " + std::to_string(devices) + " devices, split " + split.str();
    const TrainingOutcome several = run(model, devices, config, seed);
    EXPECT_LT(relative_difference(several.first_gradients, one.first_gradients), 1e-5) << what;
    EXPECT_LT(relative_difference(several.weights, one.weights), 1e-5) << what;
    EXPECT_LT(relative_difference(several.buffers, one.buffers), 1e-5) << what;
    EXPECT_LT(relative_difference(several.logits, one.logits), 1e-4) << what;
    EXPECT_EQ(several.counters, one.counters) << what;
    EXPECT_TRUE(run(model, devices, config, seed) == several) << "not the same bits: " << what;
    config.recompute_segments = 3;
    EXPECT_TRUE(run(model, devices, config, seed) == several) << "recomputation changes bits: " << what;
    config.recompute_segments = 1;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, ExactBatchNorm, ::testing::Range(0U, 4U, kSeedStep));

// PyTorch's dp and ddp: each device normalizes its samples; the running statistics are those of device 0.
TEST(LocalBatchNorm, IsWhatEachDeviceComputesAlone) {
  const Model model = tiny_resnet();
  EngineConfig config = small_config(model, 12);
  config.optimizer = make_optimizer_config("sgd", 0.05F, 0.0F, false, {});
  config.batch_statistics = BatchStatistics::local;
  const OwnedBatch batch = random_batch(model, 12, 1, 0);
  const int64_t image_bytes = batch.image_shape.numel() / 12;
  // Each half alone, from the same start.
  std::vector<std::vector<float>> halves;
  std::vector<float> start, running;
  for (const int64_t half : {0, 1}) {
    OwnedBatch part;
    part.image_shape = model.input_shape(6);
    part.label_shape = model.label_shape(6);
    part.memory->bytes.assign(batch.memory->bytes.begin() + half * 6 * image_bytes,
                              batch.memory->bytes.begin() + (half + 1) * 6 * image_bytes);
    part.memory->labels.assign(batch.memory->labels.begin() + half * 6, batch.memory->labels.begin() + (half + 1) * 6);
    DeviceGroup group(test_group(1));
    EngineConfig alone = config;
    alone.batch_size = 6;
    Engine engine(model, group, alone, {{6}, {}});
    start = engine.parameters().values();
    engine.train_step(part.view());
    halves.push_back(engine.parameters().values());
    if (half == 0) running = engine.parameters().buffers().values;
  }
  std::vector<float> mean(start.size());
  for (size_t i = 0; i < mean.size(); ++i) mean[i] = (halves[0][i] + halves[1][i]) / 2;
  for (const char* name : {"dp", "ddp"}) {
    config.scheme = scheme_preset(name);
    DeviceGroup group(test_group(2));
    Engine engine(model, group, config, {{12}, {}});
    engine.train_step(batch.view());
    EXPECT_LT(relative_difference(engine.parameters().values(), mean), 1e-6) << name;
    for (const int device : {0, 1})
      EXPECT_EQ(engine.parameters().buffers(device).values, running) << name << ", device " << device;
    engine.parameters().verify();
    engine.finish();
    config.batch_statistics = BatchStatistics::exact;
    DeviceGroup other(test_group(2));
    Engine exact(model, other, config, {{12}, {}});
    exact.train_step(batch.view());
    EXPECT_NE(exact.parameters().buffers().values, running) << "exact and local are not the same";
    config.batch_statistics = BatchStatistics::local;
  }
}

/// conv, bn, flatten and fc on images of size x size.
Model conv_norm_linear(int64_t size, int64_t classes) {
  std::vector<Sequential::Part> parts;
  parts.push_back({"conv", conv(3, 4, false)});
  parts.push_back({"bn", std::make_unique<BatchNorm2d>(4)});
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"fc", linear(size * size * 4, classes)});
  return image_model("conv-norm-linear", size, 3, classes, std::move(parts));
}

/// The tensors of a record in a flat buffer.
std::vector<float> flat_values(const nlohmann::json& tensors, const FlatLayout& layout, size_t size) {
  std::vector<float> flat(size);
  EXPECT_EQ(tensors.size(), static_cast<size_t>(layout.size()));
  for (int i = 0; i < layout.size(); ++i) {
    const auto values = tensors.at(static_cast<size_t>(i)).get<std::vector<float>>();
    EXPECT_EQ(static_cast<int64_t>(values.size()), layout.specs()[static_cast<size_t>(i)].shape.numel());
    std::copy(values.begin(), values.end(), flat.begin() + layout.offset(i));
  }
  return flat;
}

// record_local_batch_norm.py made the steps of DataParallel on two halves of each batch.
TEST(LocalBatchNorm, FollowsPyTorchsDataParallel) {
  std::ifstream file(test::source_path("tests/parallel/data/local_batch_norm.json"));
  ASSERT_TRUE(file) << "local_batch_norm.json is missing; record_local_batch_norm.py writes it";
  const nlohmann::json record = nlohmann::json::parse(file);
  const auto samples = record.at("samples").get<int64_t>();
  const Model model = conv_norm_linear(record.at("size").get<int64_t>(), record.at("classes").get<int64_t>());
  EngineConfig config = small_config(model, samples);
  config.optimizer =
      make_optimizer_config("sgd", record.at("lr").get<float>(), record.at("momentum").get<float>(), false, {});
  config.image_dtype = DType::f32;
  config.batch_statistics = BatchStatistics::local;
  for (const char* name : {"dp", "ddp"}) {
    SCOPED_TRACE(name);
    config.scheme = scheme_preset(name);
    DeviceGroup group(test_group(2));
    Engine engine(model, group, config, {{samples}, {}});
    const FlatLayout& layout = engine.parameters().layout();
    const size_t size = engine.parameters().values(0).size();
    engine.parameters().set(flat_values(record.at("start"), layout, size));
    for (const nlohmann::json& step : record.at("steps")) {
      OwnedBatch batch;
      batch.image_shape = model.input_shape(samples);
      batch.label_shape = model.label_shape(samples);
      batch.memory->floats = step.at("images").get<std::vector<float>>();
      batch.memory->labels = step.at("labels").get<std::vector<int32_t>>();
      engine.train_step(batch.view());
      const std::vector<StepResult> results = engine.take_step_results(true);
      ASSERT_EQ(results.size(), 1U);
      const double loss = step.at("loss");
      EXPECT_NEAR(results[0].mean_loss(), loss, 1e-5 * loss);
      const FlatLayout& places = engine.parameters().buffer_layout().saved();
      const nlohmann::json running = {step.at("running_mean"), step.at("running_var")};
      for (const int device : {0, 1}) {
        const std::vector<float> buffers = engine.parameters().buffers(device).values;
        EXPECT_LT(relative_difference(buffers, flat_values(running, places, buffers.size())), 1e-5)
            << "device " << device;
      }
      EXPECT_LT(relative_difference(engine.parameters().values(0), flat_values(step.at("parameters"), layout, size)),
                1e-5);
    }
    engine.finish();
  }
}

TEST(LocalBatchNorm, GivesTheSameBitsInEveryRun) {
  const Model model = tiny_resnet();
  EngineConfig config = small_config(model, 12);
  config.batch_statistics = BatchStatistics::local;
  config.accumulate = 2;
  for (const std::string& name : scheme_names()) {
    config.scheme = scheme_preset(name);
    config.scheme.split = Split{};
    EXPECT_TRUE(run(model, 3, config) == run(model, 3, config)) << name;
  }
}

TEST(BatchNormEngine, ADeviceWithOneValueForEachChannelIsRefusedWhenItIsPlanned) {
  Model model = tiny_resnet();
  model.height = model.width = 8;  // the last layer sees 1x1
  EngineConfig config = small_config(model, 3);
  config.batch_statistics = BatchStatistics::local;
  DeviceGroup group(test_group(3));
  EXPECT_THROW(Engine(model, group, config, {{3}, {}}), ShapeError);
  config.batch_statistics = BatchStatistics::exact;
  EXPECT_NO_THROW(Engine(model, group, config, {{3}, {}}));
}

TEST(BatchNormEngine, ParametersStayF32InMixedPrecision) {
  const Model model = tiny_resnet();
  const TrainingOutcome wide = run(model, 1, small_config(model, 12));
  for (const DType compute : {DType::f16, DType::bf16}) {
    EngineConfig config = small_config(model, 12);
    compute_in(config, compute);
    for (const char* name : {"ddp", "dp"}) {
      config.scheme = scheme_preset(name);
      const TrainingOutcome several = run(model, 3, config);
      EXPECT_TRUE(run(model, 3, config) == several) << name;
      // Activations have 8 or 11 bits, running statistics 24.
      EXPECT_LT(relative_difference(several.buffers, wide.buffers), compute == DType::f16 ? 3e-3 : 3e-2) << name;
      const bool any_exact = std::any_of(several.buffers.begin(), several.buffers.end(),
                                         [](float v) { return std::bit_cast<uint32_t>(v) % 65536 != 0; });
      EXPECT_TRUE(any_exact) << "running statistics have more digits than bf16";
    }
  }
}

TEST(BatchNormEngine, AnEngineThatOnlyEvaluatesTakesTheBuffers) {
  const Model model = tiny_resnet();
  for (const DType compute : {DType::f32, DType::bf16}) {
    EngineConfig config = small_config(model, 12);
    config.precision.compute = compute;
    DeviceGroup group(test_group(2));
    Engine training(model, group, config, {{12}, {5}});
    training.train_step(random_batch(model, 12, 1, 0).view());
    const OwnedBatch batch = random_batch(model, 5, 2, 0);
    std::vector<float> expected, logits;
    training.evaluate(batch.view(), &expected);
    config.forward_only = true;
    DeviceGroup others(test_group(3));
    Engine evaluation(model, others, config, {{}, {5}});
    evaluation.parameters().set(training.parameters().values());
    evaluation.parameters().set_buffers(training.parameters().buffers());
    evaluation.evaluate(batch.view(), &logits);
    EXPECT_LT(relative_difference(logits, expected), compute == DType::f32 ? 1e-5 : 1e-2);
    EXPECT_EQ(evaluation.parameters().buffers(2).values, training.parameters().buffers().values);
    evaluation.finish();
  }
}

// A step that diverges is run forward again to find out where; the running statistics do not notice.
TEST(BatchNormEngine, RunningStatisticsStayFiniteWhenTrainingDiverges) {
  const Model model = tiny_resnet();
  DeviceGroup group(test_group(2));
  Engine engine(model, group, small_config(model, 12), {{12}, {}});
  engine.train_step(random_batch(model, 12, 1, 0).view());
  std::vector<float> parameters = engine.parameters().values();
  const std::vector<float> healthy = parameters;
  parameters[static_cast<size_t>(engine.parameters().layout().offset(0))] =
      std::numeric_limits<float>::infinity();  // conv1
  engine.parameters().set(parameters);
  EXPECT_THROW(
      {
        engine.train_step(random_batch(model, 12, 2, 0).view());
        engine.take_step_results(true);
      },
      DivergedError);
  for (const int device : {0, 1}) {
    for (const float value : engine.parameters().buffers(device).values) ASSERT_TRUE(std::isfinite(value));
  }
  engine.parameters().set(healthy);
  engine.train_step(random_batch(model, 12, 3, 0).view());
  EXPECT_TRUE(std::isfinite(engine.take_step_results(true).back().mean_loss()));
  engine.parameters().verify();
}

}  // namespace
}  // namespace vitrine::test::batch_norm_test
