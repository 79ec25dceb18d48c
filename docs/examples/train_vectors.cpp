// SPDX-License-Identifier: Apache-2.0
// Trains a perceptron on vectors (N, 2), two interleaved half circles, data-parallel on two CPU devices, then evaluates
// it in an engine without gradients and optimizer state. Prints the loss and the accuracy; exit status 1 if it has not
// learned.
#include <cmath>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include <vitrine/nn/parallel/engine.h>
#include <vitrine/runtime/philox.h>

#include "points.h"

using namespace vitrine;

namespace {

constexpr int64_t kClasses = 2, kHidden = 32, kBatch = 64, kTestSamples = 256;
constexpr int kSteps = 300;

HostBatch draw(int64_t count, uint64_t seed) {
  PhiloxSequence random(seed, 0);
  Points points;
  for (int64_t i = 0; i < count; ++i) {
    const auto label = static_cast<int32_t>(i % kClasses);
    const float angle = 3.14159F * static_cast<float>(i) / static_cast<float>(count);
    const float sign = label == 0 ? 1.0F : -1.0F;
    const float x = sign * std::cos(angle) + (label == 0 ? 0.0F : 1.0F) + 0.1F * random.next_normal();
    const float y = sign * std::sin(angle) + (label == 0 ? 0.0F : 0.5F) + 0.1F * random.next_normal();
    points.add(x, y, label);
  }
  return batch_of(std::move(points));
}

double train_and_evaluate() {
  DeviceGroupOptions options;
  options.devices = {{Backend::cpu, 0}, {Backend::cpu, 1}};
  options.memory_bytes = {int64_t{64} << 20};
  DeviceGroup devices(options);
  const Model model = make_perceptron(kHidden, kClasses);

  EngineConfig config;  // ddp and AdamW
  config.batch_size = kBatch;
  config.image_dtype = DType::f32;
  config.workspace_bytes = int64_t{1} << 20;
  config.optimizer.set_learning_rate(1e-2);
  std::vector<float> trained;
  {
    Engine engine(model, devices, config, {{kBatch}, {}});
    for (uint64_t step = 1; step <= kSteps; ++step) engine.train_step(draw(kBatch, step));
    std::printf("loss of the last step: %.4f\n", engine.take_step_results(true).back().mean_loss());
    trained = engine.parameters().values();
    engine.finish();
  }
  config.forward_only = true;
  Engine evaluation(model, devices, config, {{}, {kTestSamples}});
  evaluation.parameters().set(trained);
  const StepResult totals = evaluation.evaluate(draw(kTestSamples, 0));
  evaluation.finish();
  return static_cast<double>(totals.correct) / static_cast<double>(totals.valid);
}

}  // namespace

int main() try {
  const double accuracy = train_and_evaluate();
  std::printf("accuracy: %.3f\n", accuracy);
  return accuracy > 0.95 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_vectors: %s\n", error.what());
  return 1;
}
