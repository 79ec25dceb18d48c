// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/planned_batches.h"

#include <algorithm>

#include <fmt/format.h>

#include "nn/parallel/settings.h"
#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine {

Shape staged_shape(const Model& model, const EngineConfig& config, int64_t samples) {
  if (config.image_dtype != DType::u8) return model.input_shape(samples);
  return {samples, config.image_height, config.image_width, model.channels};
}

bool gathers(const EngineConfig& config, const HostBatch& batch) {
  return !batch.images && config.resident_images.count > 0;
}

PlannedBatches::PlannedBatches(const EngineSetup& setup) : setup_(setup) {
  const DeviceGroup& devices = setup.devices;
  const Split& split = setup.config.scheme.split;
  for (const int64_t samples : setup.workload.train_batches) {
    const BatchPlan plan = plan_batch(split, samples, setup.config.accumulate, devices.world_size());
    training_.emplace(samples, part_of_process(plan, devices.first_rank(), devices.size()));
  }
  for (const int64_t samples : setup.workload.evaluate_batches) {
    MicroBatch part = micro_batch_of_process(plan_batch(split, samples, 1, devices.world_size()), 0,
                                             devices.first_rank(), devices.size(), 0);
    part.position = part.global_samples = 0;  // a process evaluates alone
    evaluation_.emplace(samples, part);
  }
}

int64_t PlannedBatches::check_training(const HostBatch& batch) const {
  const int64_t samples = global_samples(batch, setup_.workload.train_batches, "train_step");
  const int64_t rows = row_count(training(samples).rows);
  check_batch(batch, samples, rows, "train_step", gathers(setup_.config, batch));
  check_sample_indices(batch, rows);
  return samples;
}

int64_t PlannedBatches::check_evaluation(const HostBatch& batch) const {
  const int64_t samples = global_samples(batch, setup_.workload.evaluate_batches, "evaluate");
  check_batch(batch, samples, evaluation(samples).samples(), "evaluate", false);
  return samples;
}

int64_t PlannedBatches::statistics_per_step(int64_t samples) const {
  const EngineConfig& config = setup_.config;
  if (!config.exact()) return static_cast<int64_t>(training(samples).micro_batches.size());
  const int leaves = config.scheme.split.leaves, size = config.leaf_group();
  int64_t groups = 0;
  for (int i = 0; i < leaves; i += size)
    groups += leaf_begin(samples, leaves, i) < leaf_begin(samples, leaves, i + size) ? 1 : 0;
  return groups;
}

int64_t PlannedBatches::largest_slice(int d) const {
  int64_t largest = 0;
  for (const auto& [samples, part] : training_) {
    for (const MicroBatch& batch : part.micro_batches) largest = std::max(largest, batch.sizes[static_cast<size_t>(d)]);
  }
  return largest;
}

int64_t PlannedBatches::largest_micro_batch() const {
  int64_t largest = 0;
  for (const auto& [samples, part] : training_) {
    for (const MicroBatch& batch : part.micro_batches) largest = std::max(largest, batch.global_samples);
  }
  return largest;
}

int64_t PlannedBatches::largest_evaluation() const {
  int64_t largest = 0;
  for (const auto& [samples, batch] : evaluation_) largest = std::max(largest, *std::ranges::max_element(batch.sizes));
  return largest;
}

int64_t PlannedBatches::global_samples(const HostBatch& batch, const std::vector<int64_t>& planned,
                                       const char* operation) const {
  if (batch.labels.shape.rank() == 0) {
    throw ShapeError(
        fmt::format("{}: the batch has no labels; set HostBatch::labels, i32 with a row for each sample", operation));
  }
  const bool has_images = batch.images && batch.images.shape.rank() > 0;
  if (has_images && batch.images.shape[0] != batch.labels.shape[0]) {
    throw ShapeError(fmt::format("{}: the batch has {} rows of labels for {} images", operation, batch.labels.shape[0],
                                 batch.images.shape[0]));
  }
  const int64_t samples = batch.global_samples > 0 ? batch.global_samples : batch.labels.shape[0];
  if (std::ranges::find(planned, samples) == planned.end()) {
    throw ConfigError(fmt::format("{}: a batch of {} samples was not planned for; add it to the engine's workload",
                                  operation, samples));
  }
  return samples;
}

void PlannedBatches::check_batch(const HostBatch& batch, int64_t samples, int64_t rows, const char* operation,
                                 bool from_dataset) const {
  const Shape& labels = batch.labels.shape;
  if (labels[0] != rows) {
    throw ConfigError(fmt::format("{}: expected {} samples, this process's part of a batch of {}, got {}", operation,
                                  rows, samples, labels[0]));
  }
  if (labels != setup_.model.label_shape(rows)) {
    throw ShapeError(fmt::format("{}: labels have shape {}, expected {} for {} samples with {} targets each", operation,
                                 labels.str(), setup_.model.label_shape(rows).str(), rows,
                                 setup_.model.targets_per_sample));
  }
  if (batch.labels.dtype != DType::i32)
    throw DtypeError(fmt::format("{}: labels are {}, expected i32", operation, dtype_name(batch.labels.dtype)));
  if (from_dataset) return;
  if (batch.images.shape == staged_shape(setup_.model, setup_.config, rows) &&
      batch.images.dtype == setup_.config.image_dtype)
    return;
  throw ShapeError(fmt::format("{}: inputs have shape {} and dtype {}, expected {} and {}", operation,
                               batch.images.shape.str(), dtype_name(batch.images.dtype),
                               staged_shape(setup_.model, setup_.config, rows).str(),
                               dtype_name(setup_.config.image_dtype)));
}

void PlannedBatches::check_sample_indices(const HostBatch& batch, int64_t rows) const {
  const bool from_dataset = gathers(setup_.config, batch);
  if (!setup_.config.augments() && !from_dataset) return;
  if (setup_.config.augments() && (batch.epoch < 0 || batch.epoch >> kRandomStreamBits != 0))
    throw ConfigError(fmt::format("train_step: the batch's epoch is {}, expected a number from 0 to {}", batch.epoch,
                                  (int64_t{1} << kRandomStreamBits) - 1));
  if (rows > 0 && !batch.samples) {
    const Reason what = from_dataset ? Reason({"on the devices (", settings::kResidentImages, ")"})
                                     : Reason("augmented (EngineConfig::augmentation)");
    throw ConfigError(Reason("train_step: images are ") + what +
                      ", but the batch has no sample indices; set HostBatch::samples (LoaderConfig::sample_indices)");
  }
  if (rows > 0 && batch.samples.shape != Shape{rows}) {
    throw ShapeError(
        fmt::format("train_step: sample indices have shape {}, expected ({})", batch.samples.shape.str(), rows));
  }
  if (rows > 0 && batch.samples.dtype != DType::i32) {
    throw DtypeError(fmt::format("train_step: sample indices are {}, expected i32", dtype_name(batch.samples.dtype)));
  }
  for (int64_t row = 0; from_dataset && row < rows; ++row) {
    const int64_t sample = batch.samples.as<int32_t>()[row], count = setup_.config.resident_images.count;
    if (sample >= 0 && sample < count) continue;
    throw ConfigError({fmt::format("train_step: sample index {} in row {} is not one of the {} images on the devices (",
                                   sample, row, count),
                       settings::kResidentImages, ")"});
  }
}

}  // namespace vitrine
