// SPDX-License-Identifier: Apache-2.0
// Bugs of sampling: the same order in every epoch, and test images that are counted twice.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "data/loader.h"
#include "nn/parallel/engine.h"
#include "runtime/philox.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/problem.h"

namespace vitrine::tools::lab {

namespace {

using Batch = std::vector<int32_t>;  // its samples, sorted

/// 240 images of one pixel.
Dataset tiny_dataset() {
  constexpr size_t kSamples = 240;
  Dataset dataset;
  dataset.name = "one pixel";
  dataset.height = dataset.width = dataset.channels = 1;
  dataset.classes = 2;
  dataset.samples = samples_in_memory(std::vector<uint8_t>(kSamples), std::vector<int32_t>(kSamples));
  return dataset;
}

/// The batches of a loader, in order.
void add_batches(const Dataset& dataset, int64_t first_epoch, int64_t epochs, std::vector<Batch>& batches) {
  LoaderConfig config;
  config.batch_size = 24;
  config.first_epoch = first_epoch;
  config.epochs = epochs;
  config.sample_indices = true;
  Loader loader(dataset, config);
  while (const std::optional<HostBatch> batch = loader.next()) {
    const int32_t* const first = batch->samples.as<int32_t>();
    Batch& samples = batches.emplace_back(first, first + batch->samples.numel());
    std::sort(samples.begin(), samples.end());
  }
}

constexpr int64_t kTestImages = 10'000, kClasses = 4, kEvaluateBatch = 3072;

/// Points of the plane in order of their classes, as the files of an image folder are. Class 0 lies between the others
/// and is the hardest.
Samples test_set(const Model& model) {
  PhiloxSequence random(7, random_stream(RandomPurpose::synthetic_data, 1));
  Samples set = draw_samples(model, kTestImages, 7);
  for (int64_t i = 0; i < kTestImages; ++i) {
    const int64_t label = i * kClasses / kTestImages;
    const double angle = 2.1 * static_cast<double>(label), radius = label == 0 ? 0.0 : 2.0;
    float* const point = set.inputs.data() + 2 * i;
    point[0] = static_cast<float>(radius * std::cos(angle)) + random.next_normal();
    point[1] = static_cast<float>(radius * std::sin(angle)) + random.next_normal();
    set.labels[static_cast<size_t>(i)] = static_cast<int32_t>(label);
  }
  return set;
}

/// Every `stride`-th sample, from `begin` to `end`; after the last sample of the set the first ones follow again.
Samples take(const Samples& set, int64_t begin, int64_t end, int64_t stride = 1) {
  Samples taken;
  for (int64_t place = begin; place < end; place += stride) {
    const auto i = static_cast<size_t>(place % kTestImages);
    taken.inputs.insert(taken.inputs.end(), {set.inputs[2 * i], set.inputs[2 * i + 1]});
    taken.labels.push_back(set.labels[i]);
  }
  return taken;
}

/// The accuracy on the first `count` images of the set, in batches that are split equally over the devices.
double accuracy(const Model& model, const std::vector<float>& parameters, int devices, const Samples& set,
                int64_t count) {
  EngineConfig config = small_config(kEvaluateBatch);
  config.forward_only = true;
  Workload workload;
  workload.evaluate_batches = {kEvaluateBatch};
  if (count % kEvaluateBatch > 0) workload.evaluate_batches.push_back(count % kEvaluateBatch);
  DeviceGroup group(cpu_devices(devices));
  Engine engine(model, group, config, workload);
  engine.parameters().set(parameters);
  StepResult sum;
  for (int64_t begin = 0; begin < count; begin += kEvaluateBatch) {
    sum.add_totals(engine.evaluate(batch_of(model, take(set, begin, std::min(begin + kEvaluateBatch, count)))));
  }
  return static_cast<double>(sum.correct) / static_cast<double>(sum.valid);
}

}  // namespace

double measure_same_epoch_seed(size_t setting, bool planted) {
  constexpr std::array<int64_t, 3> kEpochs = {2, 4, 8};
  const Dataset dataset = tiny_dataset();
  std::vector<Batch> batches;
  if (planted) {
    // Without set_epoch(), a sampler draws the order of epoch 0 each time.
    for (int64_t epoch = 0; epoch < kEpochs[setting]; ++epoch) add_batches(dataset, 0, 1, batches);
  } else {
    add_batches(dataset, 0, kEpochs[setting], batches);
  }
  const std::set<Batch> different(batches.begin(), batches.end());
  return 1.0 - static_cast<double>(different.size()) / static_cast<double>(batches.size());
}

double measure_padded_evaluation(size_t setting, bool planted) {
  constexpr int kDevices = 3;
  constexpr std::array<int64_t, 3> kSamplesOfDevice = {1, 256, 1024};
  const Model model = make_perceptron({2}, 16, kClasses);
  const Samples set = test_set(model);
  EngineConfig config = small_config(200);
  config.optimizer = make_optimizer_config("adam", 0.05, {}, false, {});
  const std::vector<float> parameters = train(model, 1, config, batch_of(model, take(set, 0, kTestImages, 50)), 30).end;
  const double exact = accuracy(model, parameters, 1, set, kTestImages);
  const int64_t multiple = kDevices * kSamplesOfDevice[setting];
  const int64_t count = planted ? (kTestImages + multiple - 1) / multiple * multiple : kTestImages;
  return std::abs(accuracy(model, parameters, kDevices, set, count) - exact);
}

}  // namespace vitrine::tools::lab
