// SPDX-License-Identifier: Apache-2.0
#include "tools/program/learn/problem.h"

#include <cmath>
#include <memory>
#include <utility>

#include "kernels/cross_entropy.h"
#include "nn/layers/linear.h"
#include "nn/parallel/engine.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine::tools::lab {

namespace {

constexpr int64_t kMemoryBytes = int64_t{64} << 20, kWorkspaceBytes = int64_t{1} << 20;
constexpr double kLearningRate = 0.5;

}  // namespace

DeviceGroupOptions cpu_devices(int count) {
  DeviceGroupOptions options;
  for (int i = 0; i < count; ++i) options.devices.push_back({Backend::cpu, i});
  options.memory_bytes = {kMemoryBytes};
  options.threads_per_device = {1};
  options.check_order = true;
  options.trace = TraceLevel::off;
  return options;
}

EngineConfig small_config(int64_t batch_size) {
  EngineConfig config;
  config.batch_size = batch_size;
  config.image_dtype = DType::f32;
  config.workspace_bytes = kWorkspaceBytes;
  config.optimizer = make_optimizer_config("sgd", kLearningRate, {}, false, {});
  return config;
}

Model make_small_model(const char* name, const Shape& sample, int64_t classes, std::vector<Sequential::Part> parts) {
  Model model;
  model.name = name;
  model.sample_shape = sample;
  model.classes = classes;
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

Model make_perceptron(const Shape& sample, int64_t hidden, int64_t classes) {
  LinearConfig first, second;
  first.in_features = sample[sample.rank() - 1];
  first.out_features = second.in_features = hidden;
  first.relu = true;
  second.out_features = classes;
  std::vector<Sequential::Part> parts;
  parts.push_back({"hidden", std::make_unique<Linear>(first)});
  parts.push_back({"output", std::make_unique<Linear>(second)});
  Model model = make_small_model("perceptron", sample, classes, std::move(parts));
  model.targets_per_sample = sample.numel() / first.in_features;
  return model;
}

Samples draw_samples(const Model& model, int64_t count, uint64_t seed) {
  PhiloxSequence random(seed, random_stream(RandomPurpose::synthetic_data, 0));
  Samples samples;
  samples.inputs.resize(static_cast<size_t>(model.input_shape(count).numel()));
  samples.labels.resize(static_cast<size_t>(count * model.targets_per_sample));
  for (float& input : samples.inputs) input = random.next_normal();
  for (int32_t& label : samples.labels)
    label = static_cast<int32_t>(random.next_below(static_cast<uint64_t>(model.classes)));
  return samples;
}

HostBatch batch_of(const Model& model, Samples samples) {
  const auto owner = std::make_shared<Samples>(std::move(samples));
  const int64_t count = static_cast<int64_t>(owner->labels.size()) / model.targets_per_sample;
  HostBatch batch;
  batch.images = ConstView(owner->inputs.data(), model.input_shape(count), DType::f32, DeviceId::host());
  batch.labels = ConstView(owner->labels.data(), model.label_shape(count), DType::i32, DeviceId::host());
  batch.hold = owner;
  return batch;
}

Trained train(const Model& model, int devices, const EngineConfig& config, const HostBatch& batch, int steps) {
  DeviceGroup group(cpu_devices(devices));
  Engine engine(model, group, config, {{config.batch_size}, {}});
  Trained trained;
  trained.start = engine.parameters().values();
  for (int step = 0; step < steps; ++step) engine.train_step(batch);
  const StepResult last = engine.take_step_results(true).back();
  trained.end = engine.parameters().values();
  trained.gradient = engine.parameters().gradients();
  // The engine divides by the nominal number of targets; its update multiplies by this factor, see decide_step().
  const auto nominal = static_cast<double>(config.batch_size * model.targets_per_sample);
  const double factor = nominal / static_cast<double>(last.valid) / last.loss_scale;
  for (float& value : trained.gradient) value = static_cast<float>(static_cast<double>(value) * factor);
  engine.finish();
  return trained;
}

void gathered_loss(Engine& engine, const HostBatch& batch, const MicroBatch& micro_batch,
                   const std::vector<float>& weights, const Tensor& logits, const Tensor& gradient) {
  const int64_t each = engine.outputs().nominal_targets() / engine.config().batch_size,
                targets = micro_batch.samples() * each;
  ExecContext& ctx = engine.devices()[0].compute();
  const Tensor labels = ctx.allocate({targets}, DType::i32, Category::staging, "labels");
  const Tensor totals = ctx.allocate({LossTotals::kCount}, DType::f32, Category::staging, "totals");
  copy(ctx, batch.labels.rows(micro_batch.first_row, micro_batch.first_row + micro_batch.samples()).reshape({targets}),
       labels);
  zero(ctx, totals);
  int64_t begin = 0;
  for (size_t device = 0; device < weights.size(); ++device) {
    const int64_t end = begin + micro_batch.sizes[device] * each;
    if (begin < end)
      softmax_cross_entropy(ctx, {engine.config().ignore_index, weights[device]}, logits.rows(begin, end),
                            labels.rows(begin, end), View(), gradient.rows(begin, end), totals);
    begin = end;
  }
  engine.outputs().add_totals(totals, 0);
  engine.outputs().scatter(gradient, 0);
}

void finish_step(Engine& engine) {
  engine.finish_reduction();
  engine.decide_step();
  engine.update_parameters();
  engine.distribute_parameters();
}

double relative_distance(std::span<const float> x, std::span<const float> reference, std::span<const float> origin) {
  VITRINE_ASSERT(x.size() == reference.size() && (origin.empty() || origin.size() == x.size()),
                 "vectors of one layout are compared");
  double distance = 0.0, length = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double wanted = static_cast<double>(reference[i]);
    const double away = static_cast<double>(x[i]) - wanted;
    const double moved = wanted - (origin.empty() ? 0.0 : static_cast<double>(origin[i]));
    distance += away * away;
    length += moved * moved;
  }
  return std::sqrt(distance / length);
}

}  // namespace vitrine::tools::lab
