// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/libraries.h"
#include "runtime/comm/communicator.h"
#include "runtime/units.h"
#include "tools/program/describe.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted.append(c == '\'' ? "'\\''" : std::string_view(&c, 1));
  quoted += '\'';
  return quoted;
}

std::string describe_device(Device& device, const GpuReport& gpus) {
  std::string text;
  if (device.id().backend == Backend::cpu) text = fmt::format("{} thread{}", device.thread_count(), device.thread_count() == 1 ? "" : "s");
  for (const GpuInfo& gpu : gpus.gpus) {
    if (device.id().backend == Backend::cuda && gpu.index == device.id().index) text = gpu.name;
  }
  return fmt::format("{}, capacity {}", text, format_bytes(device.pool().capacity_bytes()));
}

std::string versions(const GpuReport& gpus) {
  std::string text = fmt::format("vitrine {}, compiled by {} for {}", VITRINE_VERSION, VITRINE_BUILD_COMPILER, VITRINE_BUILD_ARCH);
  const auto add = [&](Backend backend) {
    for (const LibraryInfo& library : kernel_libraries(backend)) text += fmt::format("; {} {}", library.name, library.version);
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

Facts machine_facts(DeviceGroup& devices) {
  const GpuReport gpus = query_gpus(false);
  Facts facts;
  for (int d = 0; d < devices.size(); ++d) facts.emplace_back(devices[d].name(), describe_device(devices[d], gpus));
  if (devices.process_count() > 1) {
    facts.emplace_back("other processes",
                       fmt::format("{}, with {} more devices", devices.process_count() - 1, devices.world_size() - devices.size()));
  }
  facts.emplace_back("versions", versions(gpus));
  return facts;
}

Facts run_facts(const Options& options, const Job& job, Run& run, const std::string& mode) {
  const Scheme& scheme = run.engine->config().scheme;
  const OptimizerConfig& optimizer = run.engine->config().optimizer;
  Facts facts = {{"model and data", describe_job(job, run.engine->layout())},
                 {"scheme", fmt::format("{}: split {}, staging {}, loss {}, reduce {}", mode, scheme.split.str(), staging_name(scheme.staging),
                                        loss_at_name(scheme.loss_at), reduce_name(scheme.reduce))},
                 {"batch", fmt::format("{} samples per step as {}", options.batch_size, describe_batch(run.engine->batch_plan()))},
                 {"optimizer", fmt::format("{}, lr {}, seed {}{}{}", optimizer.name(), optimizer.learning_rate(), options.seed,
                                           describe_precision(run.engine->config()), describe_memory(run.engine->config()))}};
  if (const std::string communicator = run.engine->communicator(); !communicator.empty()) facts.emplace_back("communicator", communicator);
  const Facts machine = machine_facts(*run.devices);
  facts.insert(facts.end(), machine.begin(), machine.end());
  return facts;
}

std::string describe_outside(const std::vector<DeviceFigures>& figures, int processes) {
  const bool on_gpus = !figures.empty() && figures.front().device.find("cuda:") != std::string::npos;
  if (on_gpus) {
    return "Outside the pools lie CUDA's context, libraries (NCCL, cuBLAS, cuDNN) and other processes, measured and not planned; logical devices of "
           "one GPU share them "
           "equally.";
  }
  return fmt::format(
      "Outside the pools lie data set, loader, libraries and code, measured as {} less the pools, and divided equally among {} CPU devices.",
      processes == 1 ? "the resident set" : "each process's resident set", processes == 1 ? "the" : "its");
}

FindingsInput findings_input(const Options& options, Run& run, const Measurements& measurements) {
  const EngineConfig& config = run.engine->config();
  FindingsInput input;
  input.scheme = config.scheme;
  input.batch_size = config.batch_size;
  input.accumulate = config.accumulate;
  input.workers = options.workers;
  input.host_preprocess = options.host_preprocess();
  input.bucket_bytes = config.bucket_bytes;
  input.first_bucket_bytes = config.first_bucket_bytes;
  input.figures = measurements.figures;
  input.tables = measurements.tables;
  input.communication = measurements.communication;
  return input;
}

void add_recorded_step(TrainReport& report, Run& run, const std::vector<DeviceSpans>& spans, const RecordedSteps& recorded) {
  report.shown_step = recorded.shown();
  DeviceGroup& devices = *run.devices;
  for (int d = 0; d < devices.size(); ++d) {
    const Pool& pool = devices[d].pool();
    const MemoryHistory history = recorded.history(pool);
    if (const auto mark = find_mark(history, recorded.shown())) {
      MemoryTimeline timeline = make_memory_timeline(cut_history(history, *mark));
      report.figures.timelines.push_back(timeline);
      report.memory.push_back(
          {devices[d].name(), std::move(timeline), pool.capacity_bytes(), run.engine->device_plans()[static_cast<size_t>(d)].peak_bytes});
    }
    if (auto view = view_step(spans[static_cast<size_t>(d)], recorded.shown())) report.steps.push_back({devices[d].name(), std::move(*view)});
  }
  if (!report.steps.empty()) report.figures.first_bucket_begins = first_bucket_begin(report.steps.front().view);
}

}  // namespace vitrine::tools
