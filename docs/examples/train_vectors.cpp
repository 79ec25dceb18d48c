// SPDX-License-Identifier: Apache-2.0
// Trains a perceptron on vectors (N, 2), two interleaved half circles, data-parallel on two CPU devices, then evaluates it in an engine without
// gradients and optimizer state. Prints the loss and the accuracy; exit status 1 if it has not learned.
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include <vitrine/nn/layers/linear.h>
#include <vitrine/nn/parallel/engine.h>
#include <vitrine/runtime/philox.h>

using namespace vitrine;

namespace {

constexpr int64_t kFeatures = 2, kClasses = 2, kHidden = 32, kBatch = 64, kTestSamples = 256;
constexpr int kSteps = 300;

Model make_perceptron() {
  LinearConfig hidden, output;
  hidden.in_features = kFeatures;
  hidden.out_features = output.in_features = kHidden;
  hidden.relu = true;
  output.out_features = kClasses;
  std::vector<Sequential::Part> parts;
  parts.push_back({"hidden", std::make_unique<Linear>(hidden)});
  parts.push_back({"output", std::make_unique<Linear>(output)});
  Model model;
  model.name = "perceptron";
  model.sample_shape = {kFeatures};  // inputs are (N, kFeatures) f32
  model.classes = kClasses;
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

struct Samples {
  std::vector<float> points;
  std::vector<int32_t> labels;
};

/// Shared, so that the engine can keep them until the devices have read them.
std::shared_ptr<Samples> draw(int64_t count, uint64_t seed) {
  PhiloxSequence random(seed, 0);
  auto samples = std::make_shared<Samples>();
  for (int64_t i = 0; i < count; ++i) {
    const auto label = static_cast<int32_t>(i % kClasses);
    const float angle = 3.14159F * static_cast<float>(i) / static_cast<float>(count);
    const float sign = label == 0 ? 1.0F : -1.0F;
    samples->points.push_back(sign * std::cos(angle) + (label == 0 ? 0.0F : 1.0F) + 0.1F * random.next_normal());
    samples->points.push_back(sign * std::sin(angle) + (label == 0 ? 0.0F : 0.5F) + 0.1F * random.next_normal());
    samples->labels.push_back(label);
  }
  return samples;
}

HostBatch batch_of(const std::shared_ptr<Samples>& samples) {
  const auto count = static_cast<int64_t>(samples->labels.size());
  return {ConstView(samples->points.data(), {count, kFeatures}, DType::f32, DeviceId::host()),
          ConstView(samples->labels.data(), {count}, DType::i32, DeviceId::host()), samples};
}

double train_and_evaluate() {
  DeviceGroupOptions options;
  options.devices = {{Backend::cpu, 0}, {Backend::cpu, 1}};
  options.memory_bytes = {int64_t{64} << 20};
  DeviceGroup devices(options);
  const Model model = make_perceptron();

  EngineConfig config;  // ddp and AdamW
  config.batch_size = kBatch;
  config.image_dtype = DType::f32;
  config.workspace_bytes = int64_t{1} << 20;
  config.optimizer.set_learning_rate(1e-2);
  std::vector<float> trained;
  {
    Engine engine(model, devices, config, {{kBatch}, {}});
    for (int step = 0; step < kSteps; ++step) engine.train_step(batch_of(draw(kBatch, static_cast<uint64_t>(step + 1))));
    std::printf("loss of the last step: %.4f\n", engine.take_step_results(true).back().mean_loss());
    trained = engine.parameters();
    engine.finish();
  }
  config.forward_only = true;
  Engine evaluation(model, devices, config, {{}, {kTestSamples}});
  evaluation.set_parameters(trained);
  const StepResult totals = evaluation.evaluate(batch_of(draw(kTestSamples, 0)));
  evaluation.finish();
  return static_cast<double>(totals.correct) / static_cast<double>(totals.valid);
}

}  // namespace

int main() try {
  const double accuracy = train_and_evaluate();
  std::printf("accuracy: %.3f\n", accuracy);
  return accuracy > 0.95 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
