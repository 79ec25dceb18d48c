// SPDX-License-Identifier: Apache-2.0
// A custom layer with parameters in a custom model, trained by the engine on two CPU devices: finds the brightest
// quarter of small images. Then the gradients of its parameters, and of the layer before it, are compared with finite
// differences of the loss.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include <vitrine/nn/layers/flatten.h>
#include <vitrine/nn/layers/linear.h>
#include <vitrine/nn/parallel/engine.h>
#include <vitrine/nn/parallel/gradient_error.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/host_buffer.h>
#include <vitrine/runtime/philox.h>

#include "prelu.h"

using namespace vitrine;

namespace {

constexpr int64_t kSize = 8, kClasses = 4, kBatch = 64;
constexpr int kSteps = 150;

Model make_brightest_quarter_model() {
  LinearConfig hidden, out;
  hidden.in_features = kSize * kSize;
  hidden.out_features = out.in_features = 32;
  out.out_features = kClasses;
  std::vector<Sequential::Part> parts;
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"hidden", std::make_unique<Linear>(hidden)});
  parts.push_back({"activation", std::make_unique<PReLU>(out.in_features)});
  parts.push_back({"out", std::make_unique<Linear>(out)});
  Model model;
  model.name = "brightest-quarter";
  model.height = model.width = kSize;
  model.channels = 1;
  model.classes = kClasses;
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

/// Draws noise in which one quarter of each image is a little brighter: its number is the label.
void draw(PhiloxSequence& random, float* images, int32_t* labels) {
  for (int64_t i = 0; i < kBatch; ++i) {
    const auto label = static_cast<int32_t>(i % kClasses);
    labels[i] = label;
    for (int64_t y = 0; y < kSize; ++y) {
      for (int64_t x = 0; x < kSize; ++x) {
        const bool bright = 2 * (2 * y / kSize) + 2 * x / kSize == label;
        images[(i * kSize + y) * kSize + x] = random.next_normal() + (bright ? 0.7F : 0.0F);
      }
    }
  }
}

HostBatch draw_batch(const Model& model, PhiloxSequence& random) {
  auto images = std::make_shared<HostBuffer>(kBatch * kSize * kSize * 4);
  auto labels = std::make_shared<HostBuffer>(kBatch * 4);
  const View image_view = images->view(model.input_shape(kBatch), DType::f32),
             label_view = labels->view({kBatch}, DType::i32);
  draw(random, image_view.as<float>(), label_view.as<int32_t>());
  HostBatch batch;
  batch.images = image_view;
  batch.labels = label_view;
  // The engine reads a batch while the next one is drawn; `hold` keeps the memory until then.
  batch.hold = std::make_shared<std::array<std::shared_ptr<HostBuffer>, 2>>(std::array{images, labels});
  return batch;
}

int run() {
  DeviceGroupOptions options;
  options.devices = parse_device_list("cpu:0-1", 0);
  options.memory_bytes = {int64_t{64} << 20};
  DeviceGroup devices(options);

  const Model model = make_brightest_quarter_model();
  EngineConfig config;  // like DistributedDataParallel, with AdamW
  config.batch_size = kBatch;
  config.image_dtype = DType::f32;
  config.image_height = config.image_width = kSize;
  config.optimizer.set_learning_rate(0.01);
  config.seed = 1;
  Engine engine(model, devices, config,
                {.train_batches = {kBatch},
                 .evaluate_batches = {kBatch}});  // plans the memory, including the custom layer's, then takes it

  PhiloxSequence random(7, 0);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    engine.train_step(draw_batch(model, random));
    for (const auto& totals : engine.take_step_results(false)) losses.push_back(totals.mean_loss());
  }
  for (const auto& totals : engine.take_step_results(true)) losses.push_back(totals.mean_loss());
  const HostBatch batch = draw_batch(model, random);
  const double slopes = gradient_error(engine, batch, "activation.weight"),
               before = gradient_error(engine, batch, "hidden.bias");
  engine.finish();

  for (size_t step = 0; step < losses.size(); step += 25) std::printf("step %3zu  loss %.4f\n", step, losses[step]);
  std::printf("last      loss %.4f\n", losses.back());
  std::printf("largest error of a gradient: %.1e of activation.weight, %.1e of hidden.bias\n", slopes, before);
  const bool learned = losses.size() == kSteps && losses.front() > 1.2 && losses.back() < 0.5;
  return learned && slopes < 1e-3 && before < 5e-2 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_layer: %s\n", error.what());
    return 1;
  }
}
