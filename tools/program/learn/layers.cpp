// SPDX-License-Identifier: Apache-2.0
// Bugs of layers that depend on the place of a sample in the batch: batch norm and dropout.
#include <set>
#include <utility>
#include <vector>

#include "nn/layers/batch_norm2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/parallel/engine.h"
#include "runtime/copy.h"
#include "runtime/host_buffer.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/problem.h"

namespace vitrine::tools::lab {

namespace {

constexpr uint64_t kSeed = 3;
constexpr int64_t kSamples = 12;

int devices_of(size_t setting) { return 2 + static_cast<int>(setting); }

/// A 1x1 convolution with batch norm on images of 4x4 pixels.
Model normalized_model() {
  constexpr int64_t kSide = 4, kChannels = 3, kFeatures = 6, kClasses = 4;
  LinearConfig mix, output;
  mix.in_features = kChannels;
  mix.out_features = kFeatures;
  mix.bias = false;
  output.in_features = kSide * kSide * kFeatures;
  output.out_features = kClasses;
  std::vector<Sequential::Part> parts;
  parts.push_back({"mix", std::make_unique<Linear>(mix)});
  parts.push_back({"norm", std::make_unique<BatchNorm2d>(kFeatures, BatchNormConfig{.relu = true})});
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"output", std::make_unique<Linear>(output)});
  return make_small_model("normalized", {kSide, kSide, kChannels}, kClasses, std::move(parts));
}

/// Dropout that counts the samples of each device from 0: a generator with one seed on every rank.
class PerDeviceDropout final : public Layer {
 public:
  explicit PerDeviceDropout(float p) : dropout_(p, 0) {}
  std::string describe() const override { return dropout_.describe(); }
  Shape output_shape(const Shape& x) const override { return dropout_.output_shape(x); }
  bool is_identity(const Shape& x, const Pass& pass) const override { return dropout_.is_identity(x, pass); }
  OutputNeed output_need() const override { return dropout_.output_need(); }
  bool forward_in_place() const override { return dropout_.forward_in_place(); }
  bool backward_in_place() const override { return dropout_.backward_in_place(); }
  Saved forward(const ForwardCall& call) const override {
    const Pass pass = from_zero(call.pass);
    return dropout_.forward({call.ctx, call.params, call.x, call.y, pass, call.buffers});
  }
  void backward(const BackwardCall& call) const override {
    const Pass pass = from_zero(call.pass);
    dropout_.backward(
        {call.ctx, call.params, call.saved, call.grad_y, call.grad_x, call.grad_params, call.mode, pass, call.buffers});
  }

 private:
  static Pass from_zero(Pass pass) {
    pass.first_sample = 0;
    return pass;
  }
  Dropout dropout_;
};

constexpr int64_t kOutputs = 64;
constexpr float kDropProbability = 0.5F;

/// A linear layer whose outputs are dropped: a 0 among them shows the mask.
Model dropout_model(bool planted) {
  LinearConfig linear;
  linear.in_features = 8;
  linear.out_features = kOutputs;
  std::vector<Sequential::Part> parts;
  parts.push_back({"linear", std::make_unique<Linear>(linear)});
  if (planted) {
    parts.push_back({"dropout", std::make_unique<PerDeviceDropout>(kDropProbability)});
  } else {
    parts.push_back({"dropout", std::make_unique<Dropout>(kDropProbability, 0)});
  }
  return make_small_model("dropout", {linear.in_features}, kOutputs, std::move(parts));
}

}  // namespace

double measure_batch_norm_per_shard(size_t setting, bool planted) {
  const Model model = normalized_model();
  Samples samples = draw_samples(model, kSamples, kSeed);
  // Images differ in brightness, as photographs do.
  const size_t pixels = samples.inputs.size() / kSamples;
  for (size_t i = 0; i < samples.inputs.size(); ++i) samples.inputs[i] += static_cast<float>(i / pixels % 5) - 2.0F;
  const HostBatch batch = batch_of(model, std::move(samples));
  EngineConfig config = small_config(kSamples);
  const std::vector<float> expected = train(model, 1, config, batch).gradient;
  config.batch_statistics = planted ? BatchStatistics::local : BatchStatistics::exact;
  return relative_distance(train(model, devices_of(setting), config, batch).gradient, expected);
}

double measure_repeated_dropout(size_t setting, bool planted) {
  const Model model = dropout_model(planted);
  HostBuffer memory(kSamples * kOutputs * size_of(DType::f32));
  const View outputs = memory.view({kSamples, kOutputs}, DType::f32);
  EngineConfig config = small_config(kSamples);
  config.step = [&outputs](Engine& engine, const HostBatch& batch) {
    const MicroBatch& all = engine.micro_batches().front();
    engine.stage(batch, all);
    engine.forward();
    int64_t begin = 0;
    for (int d = 0; d < engine.devices().size(); ++d) {
      const int64_t end = begin + all.sizes[static_cast<size_t>(d)];
      copy(engine.devices()[d].compute(), engine.outputs().on_device(d), outputs.rows(begin, end));
      begin = end;
    }
    engine.loss();
    engine.backward_and_reduce(true);
    finish_step(engine);
  };
  train(model, devices_of(setting), config, batch_of(model, draw_samples(model, kSamples, kSeed)));
  std::set<std::vector<bool>> masks;
  for (int64_t i = 0; i < kSamples; ++i) {
    std::vector<bool> mask;
    for (int64_t j = 0; j < kOutputs; ++j) mask.push_back(outputs.as<float>()[i * kOutputs + j] != 0.0F);
    masks.insert(mask);
  }
  return 1.0 - static_cast<double>(masks.size()) / static_cast<double>(kSamples);
}

}  // namespace vitrine::tools::lab
