// SPDX-License-Identifier: Apache-2.0
// Bugs of memory: outputs that are kept on device 0, weights that every process loads there, parameters that are
// gathered all at once.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "nn/layers/linear.h"
#include "nn/parallel/engine.h"
#include "runtime/copy.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/problem.h"

namespace vitrine::tools::lab {

namespace {

constexpr int kDevices = 2;
constexpr int64_t kSamplesOfMicroBatch = 32, kClasses = 2048;

/// A step of dp, whose loss is taken from the outputs gathered on device 0.
TrainingStep gathering_step(bool keeps_outputs) {
  return [keeps_outputs](Engine& engine, const HostBatch& batch) {
    ExecContext& ctx = engine.devices()[0].compute();
    std::vector<Tensor> outputs;  // for the accuracy of the whole step, say
    for (const MicroBatch& micro_batch : engine.micro_batches()) {
      engine.stage(batch, micro_batch);
      engine.forward();
      {
        const Tensor logits = engine.outputs().gather(0);
        const Tensor gradient = ctx.allocate(logits.shape(), DType::f32, Category::activations, "gradient of outputs");
        const float weight = 1.0F / static_cast<float>(engine.outputs().nominal_targets());
        gathered_loss(engine, batch, micro_batch, std::vector<float>(kDevices, weight), logits, gradient);
        if (keeps_outputs) outputs.push_back(logits);
      }
      engine.backward_and_reduce(micro_batch.last);
    }
    finish_step(engine);
  };
}

/// The measured peak of device 0 in training.
double peak_of_training(const Model& model, const EngineConfig& config, int devices) {
  DeviceGroup group(cpu_devices(devices));
  Engine engine(model, group, config, {{config.batch_size}, {}});
  const HostBatch batch = batch_of(model, draw_samples(model, config.batch_size, 1));
  for (int step = 0; step < 2; ++step) engine.train_step(batch);
  engine.take_step_results(true);
  engine.finish();
  return static_cast<double>(group[0].pool().statistics().peak_bytes);
}

/// The same in steps of that many micro-batches.
double peak_bytes(int micro_batches, bool keeps_outputs) {
  const Model model = make_perceptron({16}, 16, kClasses);
  EngineConfig config = small_config(micro_batches * kSamplesOfMicroBatch);
  config.scheme = scheme_preset("dp");
  config.accumulate = micro_batches;
  config.step = gathering_step(keeps_outputs);
  return peak_of_training(model, config, kDevices);
}

}  // namespace

double measure_kept_outputs(size_t setting, bool planted) {
  constexpr std::array<int, 3> kMicroBatches = {2, 4, 8};
  const double one = peak_bytes(1, false);
  return (peak_bytes(kMicroBatches[setting], planted) - one) / one;
}

double measure_gathered_at_once(size_t setting, bool planted) {
  constexpr std::array<int, 3> kDeviceCounts = {8, 4, 2};
  constexpr int64_t kWidth = 512, kLayers = 8, kLayerBytes = kWidth * kWidth * 4;
  std::vector<Sequential::Part> layers;
  for (int64_t i = 0; i < kLayers; ++i)
    layers.push_back({fmt::format("layer {}", i), std::make_unique<Linear>(LinearConfig{kWidth, kWidth, false, true})});
  const Model model = make_small_model("layers", {kWidth}, kWidth, std::move(layers));
  EngineConfig config = small_config(16);
  config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
  config.bucket_bytes = config.first_bucket_bytes = planted ? kLayers * kLayerBytes : kLayerBytes;
  const auto peak = [&](const char* mode) {
    config.scheme = scheme_preset(mode);
    return peak_of_training(model, config, kDeviceCounts[setting]);
  };
  const double below = peak("zero2");
  return std::max(0.0, (peak("zero3") - below) / below);
}

/// Each rank loads the same weights, and copies them to its parameters. All are loaded when the first rank ends.
double measure_loaded_on_device_0(size_t setting, bool planted) {
  constexpr std::array<int, 3> kRanks = {2, 4, 8};
  constexpr int64_t kElements = int64_t{1} << 20;
  DeviceGroup devices(cpu_devices(kRanks[setting]));
  const std::vector<float> file(kElements, 0.5F);
  const ConstView weights(file.data(), {kElements}, DType::f32, DeviceId::host());
  std::vector<Tensor> held;
  std::vector<std::unique_ptr<Event>> loaded;
  for (int rank = 0; rank < devices.size(); ++rank) {
    ExecContext& loads = devices[planted ? 0 : rank].compute();
    ExecContext& own = devices[rank].compute();
    const auto allocate = [&](ExecContext& ctx, const char* name) {
      return held.emplace_back(ctx.allocate({kElements}, DType::f32, Category::parameters, name));
    };
    const Tensor state = allocate(loads, "loaded weights"), parameters = allocate(own, "parameters");
    copy(loads, weights, state);
    Event& event = *loaded.emplace_back(loads.stream().make_event());
    loads.record(event);
    own.wait(event, "weights");
    copy(own, state, parameters);
  }
  devices.synchronize();
  const auto peak = [&](int rank) { return static_cast<double>(devices[rank].pool().statistics().peak_bytes); };
  return (peak(0) - peak(1)) / peak(1);
}

}  // namespace vitrine::tools::lab
