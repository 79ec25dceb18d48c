// SPDX-License-Identifier: Apache-2.0
// What an engine will need, found by walking its steps on meta.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan_search.h"
#include "nn/parallel/replica.h"
#include "runtime/error.h"
#include "runtime/gpu_info.h"
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
  if (!(precision.clip_norm >= 0.0)) throw ConfigError(fmt::format("engine: the clipping norm is {}, expected a number >= 0", precision.clip_norm));
  if (precision.compute != DType::bf16 && precision.reduce_dtype != DType::bf16) return;
  const std::vector<DeviceId>& ids = devices.options().devices;
  if (ids.front().backend != Backend::cuda) return;
  const GpuReport report = query_gpus(false);
  for (const DeviceId& id : ids) {
    for (const GpuInfo& gpu : report.gpus) {
      if (gpu.index != id.index || gpu.has_bf16()) continue;
      throw UnsupportedError(fmt::format("bf16: {} ({}, compute capability {}.{}) has no bf16; that needs 8.0 or later. Use fp16", id.str(), gpu.name,
                                         gpu.compute_major, gpu.compute_minor));
    }
  }
}

void validate(const Model& model, const DeviceGroup& devices, const EngineConfig& config, const Workload& workload) {
  if (config.batch_size < 1) throw ConfigError(fmt::format("batch size: {} is not a positive number", config.batch_size));
  if (config.accumulate < 1) throw ConfigError(fmt::format("accumulate: {} is not a positive number", config.accumulate));
  if (config.accumulate > config.batch_size) {
    throw ConfigError(
        fmt::format("accumulate: {} micro-batches of a batch of {}; give at most one micro-batch a sample", config.accumulate, config.batch_size));
  }
  validate_split(config.scheme.split, config.batch_size, devices.world_size());
  if (config.image_dtype == DType::u8 && model.takes_images() && (config.image_height < 1 || config.image_width < 1)) {
    throw ConfigError("engine: u8 images need image_height and image_width of the data set");
  }
  if (config.image_dtype != DType::u8 && config.image_dtype != DType::f32) throw DtypeError("engine: images are u8 or f32");
  for (const int64_t samples : workload.train_batches) {
    if (samples < 1 || samples > config.batch_size) {
      throw ConfigError(fmt::format("workload: a training batch of {} does not lie within 1 and the batch size {}", samples, config.batch_size));
    }
  }
  if (config.forward_only && !workload.train_batches.empty()) {
    throw ConfigError(
        "engine: forward_only is set and the workload has training batches; leave train_batches empty, or construct an engine that trains");
  }
  if (model.net == nullptr) throw ConfigError("engine: the model has no network");
  if (!model.takes_images() && config.image_dtype != DType::f32) {
    throw ConfigError(fmt::format("engine: model {} takes samples of shape {}, which are no images, but image_dtype is {}; set it to DType::f32",
                                  model.name, model.sample_shape.str(), dtype_name(config.image_dtype)));
  }
  const Shape input = model.input_shape(1);
  if (const Shape output = model.net->output_shape(input); output.numel() != model.logits_shape(1).numel()) {
    throw ShapeError(fmt::format("engine: model {} makes {} of one sample, but {} targets of {} classes need as many elements as {}", model.name,
                                 output.str(), model.targets_per_sample, model.classes, model.logits_shape(1).str()));
  }
  validate_precision(config.precision, devices);
}

/// Live activations of a layer, by the history of a pool: what it holds for backward at the end of the forward pass that holds most.
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

}  // namespace

DataParallel::Capacity capacity_for(const EngineConfig& config, const Workload& workload, const DeviceGroup& devices) {
  const int first = devices.first_rank();
  DataParallel::Capacity capacity;
  capacity.slice.assign(static_cast<size_t>(devices.size()), 0);
  for (const int64_t samples : workload.train_batches) {
    const BatchPlan plan = plan_batch(config.scheme.split, samples, config.accumulate, devices.world_size());
    for (int d = 0; d < devices.size(); ++d) {
      int64_t& slice = capacity.slice[static_cast<size_t>(d)];
      slice = std::max(slice, plan.largest_slice(first + d));
    }
    for (int k = 0; k < plan.micro_batches(); ++k) capacity.micro_batch = std::max(capacity.micro_batch, plan.micro_batch_size(k));
  }
  for (const int64_t samples : workload.evaluate_batches) {
    const std::vector<int64_t> sizes = evaluation_sizes(config, samples, devices.world_size());
    for (int d = 0; d < devices.size(); ++d) capacity.evaluate_slice = std::max(capacity.evaluate_slice, sizes[static_cast<size_t>(first + d)]);
  }
  return capacity;
}

/// Constructs the parts on meta devices and issues what the workload asks for: the first step and a steady one, with the next batch's images already
/// there; then the other sizes.
///   on_step  called before each of the first two steps, and behind them
void Engine::State::walk(const Model& model, DeviceGroup& meta, const EngineConfig& config, const Workload& workload,
                         const std::function<void()>& on_step) {
  State state(model, meta, config, workload);
  state.host_records = HostBuffer(DataParallel::kStepSlots * kRecord * size_of(DType::f32));
  state.parts = std::make_unique<DataParallel>(model, meta, config, capacity_for(config, workload, meta));
  // Meta devices read no memory, but the order checker tells ranges apart by their addresses: these belong to nothing else in the process, for no
  // user's memory lies so high.
  const void* const images_address = reinterpret_cast<const void*>(uintptr_t{1} << 60);
  const void* const labels_address = reinterpret_cast<const void*>(uintptr_t{1} << 61);
  const auto batch_of = [&](int64_t global_samples) {
    const int64_t samples = global_samples;  // at least as many as its part has
    return HostBatch{ConstView(images_address, staged_shape(model, config, samples), config.image_dtype, DeviceId::host()),
                     ConstView(labels_address, model.label_shape(samples), DType::i32, DeviceId::host()),
                     {}};
  };
  for (size_t b = 0; b < workload.train_batches.size(); ++b) {
    const int64_t samples = workload.train_batches[b];
    const ProcessPart& part = state.training_part(samples);
    for (int i = 0; i < 2; ++i) {
      if (b == 0 && on_step) on_step();
      state.issue(batch_of(samples), part, i);
    }
    if (b == 0 && on_step) on_step();
  }
  for (const int64_t samples : workload.evaluate_batches) {
    std::vector<float> totals(static_cast<size_t>(meta.size() * LossTotals::kCount));
    state.parts->evaluate(batch_of(samples), state.evaluation_part(samples));
    state.parts->read_evaluation(totals, nullptr);
  }
}

std::vector<DevicePlan> Engine::plan(const Model& model, const DeviceGroup& devices, const EngineConfig& config, const Workload& workload,
                                     PlanDetail detail) {
  validate(model, devices, config, workload);
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
  State::walk(model, *twin, config, workload, layers ? keep_history : std::function<void()>());
  for (int i = 0; i < twin->size(); ++i) {
    const PoolStatistics s = (*twin)[i].pool().statistics();
    DevicePlan& plan = plans[static_cast<size_t>(i)];
    plan.peak_bytes = s.peak_bytes;
    plan.peak_by_category = s.peak_by_category;
    plan.peak_phase = s.peak_phase;
    plan.peak_layer = s.peak_layer;
    plan.held = held_for_backward(plan.history.changes);
  }
  return plans;
}

std::string describe_peak(const DevicePlan& plan) {
  return fmt::format("phase {}{}{}", phase_name(plan.peak_phase), plan.peak_layer.empty() ? "" : " of layer ", plan.peak_layer);
}

void Engine::State::reserve() {
  std::vector<int> lacking;
  for (int i = 0; i < devices.size(); ++i) {
    if (lacks(i) > 0) lacking.push_back(i);
  }
  if (!lacking.empty()) throw_out_of_memory(lacking);
  for (int i = 0; i < devices.size(); ++i) devices[i].pool().reserve(plans[static_cast<size_t>(i)].peak_bytes);
}

int64_t Engine::State::lacks(int device) const { return plans[static_cast<size_t>(device)].peak_bytes - devices[device].pool().capacity_bytes(); }

/// Walks the plan once more within the capacity of the device that lacks most: the first tensor for which there is no room tells the story.
void Engine::State::throw_out_of_memory(const std::vector<int>& lacking) const {
  const int device = *std::max_element(lacking.begin(), lacking.end(), [this](int a, int b) { return lacks(a) < lacks(b); });
  std::string story;
  try {
    walk(model, *devices.meta_twin(device), config, workload, nullptr);
  } catch (const OutOfMemory& error) {
    story = error.what();
  }
  VITRINE_ASSERT(!story.empty(), "a peak above the capacity is met on the way");
  const DevicePlan& plan = plans[static_cast<size_t>(device)];
  story += fmt::format("\nFound before the first step: {} needs {} ({} bytes) at its peak in {}, {} more than it has", devices[device].name(),
                       format_bytes(plan.peak_bytes), plan.peak_bytes, describe_peak(plan), format_bytes(lacks(device)));
  for (const int other : lacking) {
    if (other != device) story += fmt::format("; {} lacks {}", devices[other].name(), format_bytes(lacks(other)));
  }
  throw OutOfMemory(story + "\n" + describe_remedies(PlanSearch(model, devices, config, workload)));
}

}  // namespace vitrine
