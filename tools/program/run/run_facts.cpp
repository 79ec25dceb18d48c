// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/run_facts.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/libraries.h"
#include "nn/parallel/plan/movement_plan.h"
#include "runtime/comm/communicator.h"
#include "runtime/cpu/affinity.h"
#include "runtime/units.h"
#include "tools/program/process/shell.h"
#include "tools/program/record/findings.h"
#include "tools/program/record/machine.h"
#include "tools/program/run/describe.h"
#include "tools/program/text/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

std::string describe_device(Device& device, const GpuReport& gpus) {
  std::string text;
  if (device.id().backend == Backend::cpu)
    text = fmt::format("{} thread{}", device.thread_count(), device.thread_count() == 1 ? "" : "s");
  for (const GpuInfo& gpu : gpus.gpus) {
    if (device.id().backend == Backend::cuda && gpu.index == device.id().index) text = gpu.name;
  }
  return fmt::format("{}, capacity {}", text, format_bytes(device.pool().capacity_bytes()));
}

std::string program_version() {
  return fmt::format("vitrine {}, compiled by {} for {}", VITRINE_VERSION, VITRINE_BUILD_COMPILER, VITRINE_BUILD_ARCH);
}

std::string versions(const GpuReport& gpus) {
  std::string text = program_version();
  const auto add = [&](Backend backend) {
    for (const LibraryInfo& library : kernel_libraries(backend))
      text += fmt::format("; {} {}", library.name, library.version);
  };
  add(Backend::cpu);
  if (!gpus.gpus.empty()) add(Backend::cuda);
  if (!gpus.gpus.empty()) text += fmt::format("; CUDA {}, driver for {}", gpus.runtime_version, gpus.driver_version);
  const std::string nccl = nccl_version();
  if (!gpus.gpus.empty() && !nccl.empty()) text += fmt::format("; NCCL {}", nccl);
  return text;
}

}  // namespace

std::string command_line(const Options& options) {
  std::string text = "vitrine";
  for (const std::string& argument : options.arguments) text.append(1, ' ').append(shell_word(argument));
  return text;
}

Facts program_facts() {
  const size_t cores = available_cores().size();
  return {{"date", local_time()},
          {"host", host_name()},
          {"processor", fmt::format("{}, {} core{} for this process", processor_name(), cores, cores == 1 ? "" : "s")},
          {"versions", program_version()}};
}

Facts machine_facts(DeviceGroup& devices) {
  const GpuReport gpus = query_gpus(false);
  Facts facts = program_facts();
  facts.back().second = versions(gpus);
  for (int d = 0; d < devices.size(); ++d) facts.emplace_back(devices[d].name(), describe_device(devices[d], gpus));
  if (devices.process_count() > 1) {
    facts.emplace_back("other processes", fmt::format("{}, with {} more devices", devices.process_count() - 1,
                                                      devices.world_size() - devices.size()));
  }
  return facts;
}

Facts run_facts(const Options& options, const Job& job, Run& run) {
  const Scheme& scheme = run.engine->config().scheme;
  Facts facts = {
      {"model and data", describe_job(job, run.engine->parameters().layout())},
      {"scheme", fmt::format("{}: split {}, {}", options.mode_name(), scheme.split.str(), describe_axes(scheme))},
      {"batch", fmt::format("{} per step as {}", counted(options.batch_size, "sample"),
                            describe_batch(run.engine->facts().batch))},
      {"optimizer",
       describe_training(options) + describe_precision(run.engine->config()) + describe_memory(run.engine->config())}};
  if (const std::string communicator = run.engine->facts().communicator; !communicator.empty())
    facts.emplace_back("communicator", communicator);
  if (const ImageForm form = run.engine->facts().input_form) facts.emplace_back("input", form.str());
  if (const std::string graphs = describe_graphs(options, run); !graphs.empty())
    facts.emplace_back("CUDA graphs", graphs);
  if (const std::string plans = describe_autotune(*run.engine); !plans.empty()) facts.emplace_back("plans", plans);
  const Facts machine = machine_facts(*run.devices);
  facts.insert(facts.end(), machine.begin(), machine.end());
  return facts;
}

RunRecord configured_run(const Options& options, const EngineConfig& config, const BatchPlan& batch) {
  RunRecord record;
  record.name = options.mode_name();
  record.batch = describe_batch(batch);
  record.scheme = config.scheme;
  record.precision = record.steps.precision = config.precision;
  record.batch_size = config.batch_size;
  record.accumulate = config.accumulate;
  record.workers = options.workers;
  record.host_preprocess = options.host_preprocess();
  record.bucket_bytes = config.bucket_bytes;
  record.first_bucket_bytes = config.first_bucket_bytes;
  record.update_in_backward = config.update_in_backward;
  return record;
}

static DeviceRecord planned_device(const std::string& name, const Device& device, int64_t samples_per_step,
                                   const DevicePlan& plan) {
  DeviceRecord record;
  record.device = name;
  record.samples_per_step = samples_per_step;
  record.plan = plan;
  record.pool.peak_bytes = plan.peak_bytes;
  record.pool.peak_by_category = plan.peak_by_category;
  record.pool.peak_phase = plan.peak_phase;
  record.pool.peak_layer = plan.peak_layer;
  const int64_t capacity = device.pool().capacity_bytes();
  record.pool.capacity_bytes = capacity == DeviceGroup::kUnlimitedBytes ? 0 : capacity;
  record.memory = steady_step(plan);
  return record;
}

RunRecord planned_run(const Options& options, const Job& job, EngineConfig config, const BatchPlan& batch,
                      const PlannedDevices& devices, const std::vector<DevicePlan>& plans) {
  RunRecord run = configured_run(options, config, batch);
  const Workload workload = train_workload(options, job, options.steps, options.evaluate);
  for (const DeviceGroup* const group : devices.groups()) {
    config.workspace_bytes = plans[run.devices.size()].workspace.bytes;
    const std::vector<PlannedMovement> moved = plan_movement(job.model, *group, config, workload);
    run.planned_moved_bytes = std::max(run.planned_moved_bytes, most_moved(moved));
    for (const PlannedMovement& movement : moved) {
      const size_t at = run.devices.size();
      const auto d = static_cast<int>(at);
      DeviceRecord& device = run.devices.emplace_back(
          planned_device(devices.name(d), devices[d], batch.device_samples(devices.rank(d)), plans[at]));
      device.phases = movement.phases;
      device.communication = movement.communication;
    }
  }
  if (devices.groups().size() > 1) {
    std::ranges::stable_sort(run.devices, {},
                             [](const DeviceRecord& d) { return d.pool.capacity_bytes - d.plan.peak_bytes; });
  }
  return run;
}

std::optional<RunRecord> plan_stage_below(const Options& options, const Job& job, EngineConfig config,
                                          const BatchPlan& batch, const PlannedDevices& devices) {
  Sharding& shard = config.scheme.shard;
  if (shard == Sharding::none || devices.groups()[0]->world_size() == 1) return std::nullopt;
  shard = static_cast<Sharding>(static_cast<int>(shard) - 1);
  const Workload workload = train_workload(options, job, options.steps, options.evaluate);
  return planned_run(options, job, config, batch, devices, devices.plan(job.model, config, workload));
}

void add_sample_bytes(RunRecord& record, const Model& model, const EngineConfig& config) {
  const Shape image = config.image_dtype != DType::u8
                          ? model.input_shape(1)
                          : Shape{1, config.image_height, config.image_width, model.channels};
  record.image_bytes = image.numel() * size_of(config.image_dtype) + (config.augments() ? size_of(DType::i32) : 0);
  record.images_on_device = config.resident_images.count > 0;
  record.label_bytes = model.label_shape(1).numel() * size_of(DType::i32);
}

std::optional<MemoryTimeline> steady_step(const DevicePlan& plan) {
  constexpr size_t kSteadyStep = 1;  // the history has a mark for the first step, then one for the steady step
  if (plan.history.steps.size() <= kSteadyStep) return std::nullopt;
  return make_memory_timeline(cut_history(plan.history, kSteadyStep));
}

void add_recorded_step(RunRecord& record, Run& run, const std::vector<DeviceSpans>& spans,
                       const RecordedSteps& recorded) {
  record.shown_step = recorded.shown();
  DeviceGroup& devices = *run.devices;
  for (int d = 0; d < devices.size(); ++d) {
    DeviceRecord& device = record.devices[static_cast<size_t>(d)];
    const MemoryHistory history = recorded.history(devices[d].pool());
    if (const auto mark = find_mark(history, recorded.shown()))
      device.memory = make_memory_timeline(cut_history(history, *mark));
    device.step = view_step(spans[static_cast<size_t>(d)], recorded.shown());
  }
  // On the device where it begins first: other work delays the others.
  for (const DeviceRecord& device : record.devices) {
    const std::optional<double> begin = device.step ? first_bucket_begin(*device.step) : std::nullopt;
    if (begin && (!record.first_bucket_begins || *begin < *record.first_bucket_begins))
      record.first_bucket_begins = begin;
  }
}

}  // namespace vitrine::tools
