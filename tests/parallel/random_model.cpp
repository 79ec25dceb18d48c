// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/random_model.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "nn/gpt.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/resnet.h"

namespace vitrine::test {

std::unique_ptr<Layer> conv(int64_t in, int64_t out, bool relu) {
  return std::make_unique<Conv2d>(
      Conv2dLayerConfig{.in_channels = in, .out_channels = out, .window = 3, .conv = {.pad = 1, .relu = relu}});
}

std::unique_ptr<Layer> linear(int64_t in, int64_t out, bool relu) {
  return std::make_unique<Linear>(LinearConfig{.in_features = in, .out_features = out, .relu = relu});
}

Model image_model(const char* name, int64_t size, int64_t channels, int64_t classes,
                  std::vector<Sequential::Part> parts) {
  return {.name = name,
          .height = size,
          .width = size,
          .channels = channels,
          .classes = classes,
          .net = std::make_unique<Sequential>(std::move(parts))};
}

Model random_model(uint32_t seed) {
  std::mt19937 random(seed * 7919 + 13);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  Model model;
  model.name = "random-" + std::to_string(seed);
  model.height = draw(8, 12);
  model.width = draw(8, 12);
  model.channels = draw(1, 3);
  model.classes = 5;
  std::vector<Sequential::Part> parts;
  const auto add = [&](const std::string& name, std::unique_ptr<Layer> layer) {
    parts.push_back({name, std::move(layer)});
  };
  Shape shape{1, model.height, model.width, model.channels};
  const auto grow = [&](const std::string& name, std::unique_ptr<Layer> layer) {
    shape = layer->output_shape(shape);
    add(name, std::move(layer));
  };
  int64_t dropouts = 0;
  const int64_t convolutions = draw(0, 2);
  for (int64_t i = 0; i < convolutions; ++i) {
    const std::string name = "features." + std::to_string(2 * i);
    const bool relu_behind = seed % 2 == 1;
    grow(name, conv(shape[3], draw(3, 9), !relu_behind));
    grow("features." + std::to_string(2 * i + 1), std::make_unique<MaxPool2d>(Pool2dConfig{2, 2, 0}, relu_behind));
  }
  grow("flatten", std::make_unique<Flatten>());
  const int64_t hidden = draw(5, 20);
  grow("classifier.0", linear(shape[1], hidden, true));
  grow("classifier.1", std::make_unique<Dropout>(0.4F, dropouts++));
  grow("classifier.2", linear(hidden, model.classes));
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

Model tiny_resnet(bool bottleneck) {
  constexpr int64_t kSize = 9, kChannels = 3, kClasses = 5;  // the last layer sees 2x2
  const ResNetConfig config{.bottleneck = bottleneck, .blocks = {1, 1, 1, 1}, .width = 4, .small_images = true};
  return image_model("tiny-resnet", kSize, kChannels, kClasses, resnet_parts(config, kChannels, kClasses));
}

Model tiny_gpt() {
  constexpr int64_t kLength = 6, kVocabulary = 11;
  const GptConfig config{
      .layers = 2, .width = 16, .heads = 2, .positions = 8, .vocabulary = kVocabulary, .dropout = 0.1F};
  return {.name = "tiny-gpt",
          .classes = kVocabulary,
          .net = std::make_unique<Sequential>(gpt_parts(config)),
          .targets_per_sample = kLength,
          .sample_shape = {kLength}};
}

Model planted_model(std::unique_ptr<Layer> planted) {
  std::vector<Sequential::Part> parts;
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"fc1", linear(16, 300)});
  parts.push_back({"planted", std::move(planted)});
  parts.push_back({"fc2", linear(300, 5)});
  return image_model("planted", 4, 1, 5, std::move(parts));
}

HostBatch OwnedBatch::view() const {
  ConstView images(memory->bytes.data(), image_shape, DType::u8, DeviceId::host());
  if (!memory->floats.empty()) images = ConstView(memory->floats.data(), image_shape, DType::f32, DeviceId::host());
  if (!memory->tokens.empty()) images = ConstView(memory->tokens.data(), image_shape, DType::i32, DeviceId::host());
  HostBatch batch{images, ConstView(memory->labels.data(), label_shape, DType::i32, DeviceId::host()), memory};
  if (!memory->samples.empty()) {
    batch.samples =
        ConstView(memory->samples.data(), {static_cast<int64_t>(memory->samples.size())}, DType::i32, DeviceId::host());
  }
  return batch;
}

OwnedBatch random_batch(const Model& model, int64_t samples, uint32_t seed, double ignored, DType dtype) {
  std::mt19937 random(seed);
  OwnedBatch batch;
  batch.image_shape = model.input_shape(samples);
  batch.label_shape = model.label_shape(samples);
  const auto count = static_cast<size_t>(batch.image_shape.numel());
  if (dtype == DType::u8) {
    batch.memory->bytes.resize(count);
    for (uint8_t& b : batch.memory->bytes) b = static_cast<uint8_t>(random());
  } else if (dtype == DType::i32) {
    batch.memory->tokens.resize(count);
    for (int32_t& t : batch.memory->tokens) t = static_cast<int32_t>(random() % static_cast<uint32_t>(model.classes));
  } else {
    batch.memory->floats.resize(count);
    for (float& f : batch.memory->floats) f = static_cast<float>(random() % 2000) * 1e-3F - 1.0F;
  }
  for (int64_t i = 0; i < samples; ++i)
    batch.memory->samples.push_back(static_cast<int32_t>(int64_t{seed} * 1000 + i * 17));
  for (int64_t i = 0; i < batch.label_shape.numel(); ++i) {
    const bool ignore = static_cast<double>(random() % 1000) < ignored * 1000;
    batch.memory->labels.push_back(ignore ? -100
                                          : static_cast<int32_t>(random() % static_cast<uint32_t>(model.classes)));
  }
  return batch;
}

EngineConfig small_config(const Model& model, int64_t batch_size) {
  EngineConfig config;
  config.scheme = scheme_preset("ddp");
  config.batch_size = batch_size;
  config.optimizer = make_optimizer_config("sgd", 0.05F, 0.9F, false, {});
  config.seed = 7;
  config.image_height = model.height;
  config.image_width = model.width;
  config.workspace_bytes = int64_t{4} << 20;
  config.bucket_bytes = 2048;
  config.first_bucket_bytes = 256;
  return config;
}

void compute_in(EngineConfig& config, DType dtype) {
  config.precision.compute = dtype;
  if (dtype == DType::f16) config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
}

DeviceGroupOptions meta_group(int devices, int64_t memory_bytes) {
  DeviceGroupOptions options;
  for (int d = 0; d < devices; ++d) options.devices.push_back({Backend::meta, d});
  options.memory_bytes = {memory_bytes};
  return options;
}

DeviceGroupOptions test_group(int devices, bool check_order) {
  DeviceGroupOptions options{.devices = test_devices(devices), .memory_bytes = {int64_t{128} << 20}};
  if (!on_gpu()) options.threads_per_device = {1};
  options.check_order = check_order;
  return options;
}

TrainingOutcome train(const Model& model, int devices, const EngineConfig& config, const TrainingCase& training) {
  DeviceGroup group(test_group(devices, training.check_order));
  Workload workload;
  for (const int64_t samples : training.batches) {
    if (std::ranges::count(workload.train_batches, samples) == 0) workload.train_batches.push_back(samples);
  }
  if (training.evaluated > 0) workload.evaluate_batches = {training.evaluated};
  Engine engine(model, group, config, workload);
  // Gradients of these small models stay finite at this scale; at the default one the first steps would be skipped.
  if (config.precision.loss_scaling.active()) engine.checkpointer().set_loss_scale_state(256.0F, 0);
  TrainingOutcome trained;
  const auto take_results = [&] {
    for (const StepResult& step : engine.take_step_results(true)) {
      EXPECT_FALSE(step.skipped) << step.overflow;
      trained.losses.push_back(step.mean_loss());
      trained.steps.push_back(step);
    }
  };
  const auto batch_of = [&](int64_t samples, uint32_t number, double ignored) {
    HostBatch batch = random_batch(model, samples, training.seed + number, ignored, config.image_dtype).view();
    batch.epoch = 9;
    return batch;
  };
  uint32_t number = 0;
  for (const int64_t samples : training.batches) {
    engine.train_step(batch_of(samples, number, training.ignored));
    if (training.waits) take_results();
    if (number++ == 0 && training.first_gradients) trained.first_gradients = engine.parameters().gradients();
  }
  take_results();
  if (training.evaluated > 0)
    trained.test_loss = engine.evaluate(batch_of(training.evaluated, 99, 0), &trained.logits).mean_loss();
  engine.parameters().verify();
  trained.weights = engine.parameters().values();
  trained.working = engine.parameters().working_values();
  if (config.ema_decay > 0.0) trained.averages = engine.parameters().averages().values();
  const BufferValues buffers = engine.parameters().buffers();
  trained.buffers = buffers.values;
  trained.counters = buffers.counters;
  for (int d = 1; d < devices; ++d) {
    EXPECT_EQ(engine.parameters().working_values(d), trained.working) << "replica " << d;
    EXPECT_EQ(engine.parameters().buffers(d).values, trained.buffers) << "replica " << d;
  }
  training.look(engine);
  engine.finish();  // asserts that the plan was met to the byte
  return trained;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / norm);
}

}  // namespace vitrine::test
