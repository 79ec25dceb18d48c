// SPDX-License-Identifier: Apache-2.0
// What an engine will need, found by running its steps on meta devices.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan/plan_search.h"
#include "runtime/gpu_info.h"
#include "runtime/memory/pool_placement.h"
#include "runtime/units.h"

namespace vitrine {
namespace {

void check_storage(const char* what, DType dtype) {
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return;
  throw DtypeError(fmt::format("engine: {} is {}, expected f32, f16 or bf16", what, dtype_name(dtype)));
}

void validate_precision(const Precision& precision, const DeviceGroup& devices) {
  check_storage("the precision", precision.compute);
  check_storage("the dtype of the reduction", precision.reduce_dtype);
  if (!(precision.clip_norm >= 0.0))
    throw ConfigError(fmt::format("engine: the clipping norm is {}, expected a number >= 0", precision.clip_norm));
  if (precision.compute != DType::bf16 && precision.reduce_dtype != DType::bf16) return;
  const std::vector<DeviceId>& ids = devices.options().devices;
  if (ids.front().backend != Backend::cuda) return;
  const GpuReport report = query_gpus(false);
  for (const DeviceId& id : ids) {
    for (const GpuInfo& gpu : report.gpus) {
      if (gpu.index != id.index || gpu.has_bf16()) continue;
      throw UnsupportedError(
          fmt::format("bf16: {} ({}, compute capability {}.{}) has no bf16; that needs 8.0 or later. Use fp16",
                      id.str(), gpu.name, gpu.compute_major, gpu.compute_minor));
    }
  }
}

void validate_resident_images(const EngineConfig& config) {
  const ResidentImages& resident = config.resident_images;
  if (resident.count < 0 || resident.count > INT32_MAX) {
    throw ConfigError(fmt::format("engine: resident_images has {} images, expected 0 to 2^31 - 1", resident.count));
  }
  if (resident.count == 0) return;
  if (!resident.read)
    throw ConfigError("engine: resident_images has images but no function that reads them; set ResidentImages::read");
  if (config.forward_only)
    throw ConfigError("engine: resident_images are for training, but forward_only is set; leave them out");
  if (config.image_dtype != DType::u8) {
    throw ConfigError(
        fmt::format("engine: resident_images are u8, but image_dtype is {}; set it to DType::u8, or leave them out",
                    dtype_name(config.image_dtype)));
  }
}

void validate(const Model& model, const DeviceGroup& devices, const EngineConfig& config, const Workload& workload) {
  if (config.batch_size < 1)
    throw ConfigError(fmt::format("batch size: expected a positive number, got {}", config.batch_size));
  if (config.accumulate < 1)
    throw ConfigError(
        fmt::format("accumulate: expected a positive number of micro-batches, got {}", config.accumulate));
  if (config.accumulate > config.batch_size) {
    throw ConfigError(fmt::format("accumulate: expected at most {} micro-batches, one per sample of the batch, got {}",
                                  config.batch_size, config.accumulate));
  }
  validate_split(config.scheme.split, config.batch_size, devices.world_size());
  if (config.image_dtype == DType::u8 && model.takes_images() && (config.image_height < 1 || config.image_width < 1)) {
    throw ConfigError(
        "engine: u8 images need image_height and image_width; set them to the size of the data set's images");
  }
  if (config.image_dtype != DType::u8 && config.image_dtype != DType::f32) {
    throw DtypeError(fmt::format("engine: image_dtype is {}, expected u8 or f32", dtype_name(config.image_dtype)));
  }
  for (const int64_t samples : workload.train_batches) {
    if (samples < 1 || samples > config.batch_size) {
      throw ConfigError(fmt::format("workload: expected training batches of 1 to {} samples, the batch size, got {}",
                                    config.batch_size, samples));
    }
  }
  if (config.forward_only && !workload.train_batches.empty()) {
    throw ConfigError(
        "engine: forward_only is set and the workload has training batches; leave train_batches empty, or construct an "
        "engine that trains");
  }
  if (model.net == nullptr) throw ConfigError("engine: the model has no network");
  if (!model.takes_images() && config.image_dtype != DType::f32) {
    throw ConfigError(fmt::format(
        "engine: model {} takes samples of shape {}, which are not images, but image_dtype is {}; set it to DType::f32",
        model.name, model.sample_shape.str(), dtype_name(config.image_dtype)));
  }
  const Shape input = model.input_shape(1);
  if (const Shape output = model.net->output_shape(input); output.numel() != model.logits_shape(1).numel()) {
    throw ShapeError(fmt::format(
        "engine: model {} returns {} for one sample, expected as many elements as {}: {} targets of {} classes",
        model.name, output.str(), model.logits_shape(1).str(), model.targets_per_sample, model.classes));
  }
  if (config.reducer && config.scheme.reduce != Reduce::allreduce) {
    throw ConfigError(
        "engine: EngineConfig::reducer replaces the reduction of the scheme, which is gpu0; set scheme.reduce to "
        "Reduce::allreduce");
  }
  if (!(config.ema_decay >= 0.0 && config.ema_decay < 1.0)) {
    throw ConfigError(fmt::format("engine: ema_decay is {}, expected a number from 0 to 1, below 1", config.ema_decay));
  }
  if (config.augmentation.any() && config.image_dtype != DType::u8) {
    throw ConfigError(
        fmt::format("engine: augmentation changes u8 images on the device, but image_dtype is {}; set it to DType::u8, "
                    "or augmentation to {{}}",
                    dtype_name(config.image_dtype)));
  }
  if (!(config.label_smoothing >= 0.0F && config.label_smoothing <= 1.0F)) {
    throw ConfigError(
        fmt::format("engine: label_smoothing is {}, expected a number from 0 to 1", config.label_smoothing));
  }
  validate_resident_images(config);
  if (config.autotune.enabled && devices.target().backend != Backend::cuda) {
    throw ConfigError(
        "engine: EngineConfig::autotune times plans on GPUs, so it has nothing to time on CPU devices; leave it out");
  }
  if (config.autotune.enabled && !(config.autotune.most_seconds > 0.0)) {
    throw ConfigError(
        fmt::format("engine: Autotune::most_seconds is {}, expected a number above 0", config.autotune.most_seconds));
  }
  validate_precision(config.precision, devices);
}

/// Activations that each layer holds for backward at the end of the forward pass that holds most, from the history of a
/// pool.
std::vector<HeldBytes> held_for_backward(const std::vector<MemoryEvent>& history) {
  std::map<int64_t, const MemoryEvent*> live;  // by offset
  std::vector<HeldBytes> most;
  int64_t most_bytes = 0;
  const auto take = [&] {
    std::vector<HeldBytes> held;
    int64_t bytes = 0;
    std::vector<const MemoryEvent*> blocks;
    for (const auto& [offset, block] : live) {
      if (block->category == Category::activations) blocks.push_back(block);
    }
    // The events lie in one vector, in the order in which they happened.
    std::sort(blocks.begin(), blocks.end());
    for (const MemoryEvent* block : blocks) {
      const std::string& layer = block->layer.empty() ? block->tensor : block->layer;
      if (held.empty() || held.back().layer != layer) held.push_back({layer, 0});
      held.back().bytes += block->bytes;
      bytes += block->bytes;
    }
    if (bytes > most_bytes) {
      most = std::move(held);
      most_bytes = bytes;
    }
  };
  Phase phase = Phase::setup;
  for (const MemoryEvent& event : history) {
    if (phase == Phase::forward && event.phase != Phase::forward) take();
    phase = event.phase;
    if (event.bytes > 0) {
      live[event.offset] = &event;
    } else if (event.bytes < 0) {
      live.erase(event.offset);
    }
  }
  return most;
}

using PlacedRecords = std::vector<std::pair<PoolRecord, std::shared_ptr<const PoolPlacement>>>;

/// Places the blocks of a pool, or finds a pool with the same blocks among those placed before: most devices have the
/// same blocks as another.
std::shared_ptr<const PoolPlacement> placement_of(PoolRecord record, PlacedRecords& placed) {
  const auto known =
      std::find_if(placed.begin(), placed.end(), [&](const auto& other) { return other.first == record; });
  if (known != placed.end()) return known->second;
  auto placement = std::make_shared<const PoolPlacement>(place_pool(record));
  return placed.emplace_back(std::move(record), std::move(placement)).second;
}

/// Gives the blocks of a history, which begins with the record of the placement, their offsets.
void move_blocks(MemoryHistory& history, const PoolPlacement& placement) {
  std::map<int64_t, int64_t> moved;  // offsets of the blocks in use
  size_t block = 0;
  for (MemoryEvent& event : history.changes) {
    if (event.bytes > 0) {
      const int64_t offset = placement.offsets[block++];
      moved[event.offset] = offset;
      event.offset = offset;
    } else {
      event.offset = moved.at(event.offset);
    }
  }
}

}  // namespace

void Engine::State::walk(const Model& model, DeviceGroup& meta, const EngineConfig& config, const Workload& workload,
                         const std::function<void()>& on_step) {
  Engine engine(std::make_unique<State>(model, meta, config, workload));
  State& state = *engine.state_;
  // Meta devices read no memory, but the order checker distinguishes ranges by their addresses: no user's memory lies
  // as high as these.
  const void* const images_address = reinterpret_cast<const void*>(uintptr_t{1} << 60);
  const void* const labels_address = reinterpret_cast<const void*>(uintptr_t{1} << 61);
  const void* const samples_address = reinterpret_cast<const void*>(uintptr_t{1} << 62);
  // A process's part has at most as many samples as the global batch.
  const auto batch_of = [&](int64_t samples) {
    HostBatch batch{
        ConstView(images_address, staged_shape(model, config, samples), config.image_dtype, DeviceId::host()),
        ConstView(labels_address, model.label_shape(samples), DType::i32, DeviceId::host()),
        {}};
    batch.samples = ConstView(samples_address, {samples}, DType::i32, DeviceId::host());
    return batch;
  };
  const auto training_batch_of = [&](int64_t samples) {
    HostBatch batch = batch_of(samples);
    if (config.resident_images.count > 0) batch.images = {};
    return batch;
  };
  for (size_t b = 0; b < workload.train_batches.size(); ++b) {
    const int64_t samples = workload.train_batches[b];
    for (int i = 0; i < 2; ++i) {
      if (b == 0 && on_step) on_step();
      engine.issue(training_batch_of(samples), samples, i);
    }
    if (b == 0 && on_step) on_step();
  }
  for (const int64_t samples : workload.evaluate_batches) {
    state.issue_evaluation(batch_of(samples), state.evaluation_part(samples), samples);
    state.read_evaluation(nullptr);
  }
  state.section = {State::kEnd, 0, 0};
  state.begin_section();
}

std::vector<DevicePlan> Engine::plan(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                     const Workload& workload, PlanDetail detail) {
  validate(model, devices, config, workload);
  if (!config.workspace_bytes) return State::plan_with_workspace(model, devices, config, workload, detail);
  std::vector<DevicePlan> plans = State::plan(model, devices, config, workload, detail);
  for (DevicePlan& plan : plans) plan.workspace = {*config.workspace_bytes, *config.workspace_bytes, {}, ""};
  return plans;
}

std::vector<DevicePlan> Engine::State::plan(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                            const Workload& workload, PlanDetail detail) {
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin();
  std::vector<DevicePlan> plans(static_cast<size_t>(twin->size()));
  int steps = 0;
  const auto keep_history = [&] {
    for (int i = 0; i < twin->size(); ++i) {
      DevicePlan& plan = plans[static_cast<size_t>(i)];
      Pool& pool = (*twin)[i].pool();
      if (steps < 2) continue;
      plan.history = pool.history();
      pool.record_history(false);
    }
    ++steps;
  };
  const bool layers = detail == PlanDetail::layers;
  for (int i = 0; layers && i < twin->size(); ++i) (*twin)[i].pool().record_history(true);
  for (int i = 0; i < twin->size(); ++i) (*twin)[i].pool().start_record();
  walk(model, *twin, config, workload, layers ? keep_history : std::function<void()>());
  PlacedRecords placed;
  for (int i = 0; i < twin->size(); ++i) {
    Pool& pool = (*twin)[i].pool();
    const PoolStatistics s = pool.statistics();
    DevicePlan& plan = plans[static_cast<size_t>(i)];
    plan.placement = placement_of(pool.take_record(), placed);
    plan.peak_bytes = plan.placement->height;
    plan.unplaced_peak_bytes = s.peak_bytes;
    plan.peak_by_category = s.peak_by_category;
    plan.peak_by_category[static_cast<size_t>(Category::fragmentation)] =
        plan.peak_bytes - allocated_bytes(s.peak_by_category);
    plan.peak_phase = s.peak_phase;
    plan.peak_layer = s.peak_layer;
    move_blocks(plan.history, *plan.placement);
    plan.held = held_for_backward(plan.history.changes);
  }
  return plans;
}

std::string describe_peak(const DevicePlan& plan) {
  return fmt::format("phase {}{}{}", phase_name(plan.peak_phase), plan.peak_layer.empty() ? "" : " of layer ",
                     plan.peak_layer);
}

void Engine::State::reserve() {
  std::vector<int> lacking;
  for (int i = 0; i < devices.size(); ++i) {
    if (lacks(i) > 0) lacking.push_back(i);
  }
  if (!lacking.empty()) throw_out_of_memory(lacking);
  for (int i = 0; i < devices.size(); ++i) {
    const DevicePlan& plan = plans[static_cast<size_t>(i)];
    devices[i].pool().reserve(plan.peak_bytes);
    devices[i].pool().follow(plan.placement);
  }
}

int64_t Engine::State::lacks(int device) const {
  return plans[static_cast<size_t>(device)].peak_bytes - devices[device].pool().capacity_bytes();
}

/// Runs the plan again within the capacity of the device that lacks most: the error of the first tensor that fits
/// nowhere explains the rest.
void Engine::State::throw_out_of_memory(const std::vector<int>& lacking) const {
  const int device =
      *std::max_element(lacking.begin(), lacking.end(), [this](int a, int b) { return lacks(a) < lacks(b); });
  Reason story;
  MemoryShortage shortage;
  const DevicePlan& plan = plans[static_cast<size_t>(device)];
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin(device);
  (*twin)[device].pool().limit_sum();
  try {
    walk(model, *twin, config, workload, nullptr);
  } catch (const OutOfMemory& error) {
    story = error.reason();
    shortage = error.shortage();
  }
  if (story.empty()) {
    // The blocks would fit, but the gaps that the placement leaves between them do not.
    const int64_t capacity = devices[device].pool().capacity_bytes();
    story = fmt::format(
        "{}: out of memory. The plan needs {} ({} bytes), {} of them in gaps between blocks, and the capacity is {} "
        "({} bytes). It holds {}.",
        devices[device].name(), format_bytes(plan.peak_bytes), plan.peak_bytes,
        format_bytes(plan.peak_by_category[static_cast<size_t>(Category::fragmentation)]), format_bytes(capacity),
        capacity, describe_by_size(plan.peak_by_category));
    shortage = {.device = devices[device].name(),
                .user = "the plan",
                .needed_bytes = plan.peak_bytes,
                .capacity_bytes = capacity};
  }
  story += fmt::format("\nFound before the first step: {} needs {} ({} bytes) at its peak in {}, {} more than it has",
                       devices[device].name(), format_bytes(plan.peak_bytes), plan.peak_bytes, describe_peak(plan),
                       format_bytes(lacks(device)));
  for (const int other : lacking) {
    if (other != device) story += fmt::format("; {} lacks {}", devices[other].name(), format_bytes(lacks(other)));
  }
  EngineConfig searched = config;
  if (workspace_planned) searched.workspace_bytes = std::nullopt;
  throw OutOfMemory(story + "\n" + describe_remedies(PlanSearch(model, devices, searched, workload)), shortage);
}

}  // namespace vitrine
