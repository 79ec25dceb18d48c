// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/random_model.h"

#include <cmath>

#include "nn/layers/conv2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/resnet.h"

namespace vitrine::test {

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
    Conv2dLayerConfig config;
    config.in_channels = shape[3];
    config.out_channels = draw(3, 9);
    config.window = 3;
    config.conv.pad = 1;
    const bool relu_behind = seed % 2 == 1;
    config.conv.relu = !relu_behind;
    grow(name, std::make_unique<Conv2d>(config));
    grow("features." + std::to_string(2 * i + 1), std::make_unique<MaxPool2d>(Pool2dConfig{2, 2, 0}, relu_behind));
  }
  grow("flatten", std::make_unique<Flatten>());
  const int64_t hidden = draw(5, 20);
  LinearConfig first;
  first.in_features = shape[1];
  first.out_features = hidden;
  first.relu = true;
  grow("classifier.0", std::make_unique<Linear>(first));
  grow("classifier.1", std::make_unique<Dropout>(0.4F, dropouts++));
  LinearConfig last;
  last.in_features = hidden;
  last.out_features = model.classes;
  grow("classifier.2", std::make_unique<Linear>(last));
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

Model tiny_resnet(bool bottleneck) {
  Model model;
  model.name = "tiny-resnet";
  model.height = model.width = 9;  // the last layer sees 2x2
  model.channels = 3;
  model.classes = 5;
  const ResNetConfig config{.bottleneck = bottleneck, .blocks = {1, 1, 1, 1}, .width = 4, .small_images = true};
  model.net = std::make_unique<Sequential>(resnet_parts(config, model.channels, model.classes));
  return model;
}

Model planted_model(std::unique_ptr<Layer> planted) {
  Model model;
  model.name = "planted";
  model.height = model.width = 4;
  model.channels = 1;
  model.classes = 5;
  LinearConfig first, last;
  first.in_features = 16;
  first.out_features = 300;
  last.in_features = 300;
  last.out_features = 5;
  std::vector<Sequential::Part> parts;
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"fc1", std::make_unique<Linear>(first)});
  parts.push_back({"planted", std::move(planted)});
  parts.push_back({"fc2", std::make_unique<Linear>(last)});
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

HostBatch OwnedBatch::view() const {
  const bool is_float = !memory->floats.empty();
  const void* data = is_float ? static_cast<const void*>(memory->floats.data()) : memory->bytes.data();
  HostBatch batch{ConstView(data, image_shape, is_float ? DType::f32 : DType::u8, DeviceId::host()),
                  ConstView(memory->labels.data(), label_shape, DType::i32, DeviceId::host()), memory};
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

DeviceGroupOptions test_group(int devices, bool check_order) {
  DeviceGroupOptions options;
  options.devices = test_devices(devices);
  options.memory_bytes = {int64_t{128} << 20};
  if (!on_gpu()) options.threads_per_device = {1};
  options.check_order = check_order;
  return options;
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
