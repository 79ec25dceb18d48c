// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/measure.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/trace/chrome_trace.h"
#include "runtime/trace/memory_snapshot.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {

PhaseRecorder::PhaseRecorder(Run& run, std::optional<StepRange> keep) : devices_(*run.devices) {
  const CommunicationGroup group{run.engine->config().scheme.reduce == ReducerKind::allreduce};
  for (int d = 0; d < devices_.size(); ++d) recorders_.emplace_back(d, group, keep);
}

void PhaseRecorder::poll(std::vector<SpanRecord>&& host, int64_t first_step) {
  for (int d = 0; d < devices_.size(); ++d) {
    const auto poll = [](ExecContext& ctx) { return ctx.stream().poll_spans(); };
    Device& device = devices_[d];
    recorders_[static_cast<size_t>(d)].add(
        {d, poll(device.compute()), poll(device.copy()), poll(device.communication()), host}, first_step);
  }
}

void PhaseRecorder::collect(std::vector<SpanRecord>&& host, int64_t first_step) {
  for (int d = 0; d < devices_.size(); ++d) devices_[d].compute().mark_step();
  devices_.synchronize();
  for (int d = 0; d < devices_.size(); ++d) {
    const auto take = [](ExecContext& ctx) { return ctx.stream().take_spans(); };
    Device& device = devices_[d];
    StepRecorder& recorder = recorders_[static_cast<size_t>(d)];
    recorder.add({d, take(device.compute()), take(device.copy()), take(device.communication()), host}, first_step);
    recorder.finish(first_step);
  }
}

void PhaseRecorder::discard() {
  devices_.synchronize();
  for (int d = 0; d < devices_.size(); ++d) {
    devices_[d].compute().stream().take_spans();
    devices_[d].copy().stream().take_spans();
    devices_[d].communication().stream().take_spans();
    recorders_[static_cast<size_t>(d)].discard();
  }
}

std::vector<PhaseTable> PhaseRecorder::tables() const {
  std::vector<PhaseTable> tables;
  for (const StepRecorder& recorder : recorders_) tables.push_back(recorder.phases());
  return tables;
}

void PhaseRecorder::add_to(std::vector<DeviceRecord>& devices) const {
  for (size_t d = 0; d < recorders_.size(); ++d) {
    DeviceRecord& record = devices[d];
    const auto add = [](auto& table, auto&& more, const auto& sum) {
      if (table.steps == 0) {
        table = more;
      } else {
        sum(table, more);
      }
    };
    add(record.phases, recorders_[d].phases(), add_phase_table);
    add(record.communication, recorders_[d].communication(), add_communication_table);
    record.phases.ordinal = record.communication.ordinal = static_cast<int>(d);
  }
}

std::vector<DeviceSpans> PhaseRecorder::kept_spans() const {
  std::vector<DeviceSpans> kept;
  for (size_t d = 0; d < recorders_.size(); ++d) {
    kept.push_back(recorders_[d].kept());
    kept.back().ordinal = static_cast<int>(d);
  }
  return kept;
}

namespace {

/// What a GPU has in use beyond the pools on it, divided among the logical devices that share it.
void measure_outside_on_gpus(DeviceGroup& devices, std::vector<DeviceRecord>& figures) {
  std::map<int, std::vector<size_t>> sharing;
  for (int d = 0; d < devices.size(); ++d) sharing[devices[d].id().index].push_back(static_cast<size_t>(d));
  for (const auto& [gpu, members] : sharing) {
    int64_t outside = devices[static_cast<int>(members[0])].gpu_used_bytes();
    for (const size_t d : members) outside -= figures[d].pool.reserved_bytes;
    const std::vector<int64_t> parts = equal_parts(std::max<int64_t>(0, outside), static_cast<int>(members.size()));
    std::map<std::string, int64_t> owners;
    for (const size_t d : members) {
      for (const OutsideBytes& owner : devices[static_cast<int>(d)].outside_bytes()) {
        // All of them found the same context.
        owners[owner.owner] =
            owner.owner == std::string_view("context") ? owner.bytes : owners[owner.owner] + owner.bytes;
      }
    }
    for (size_t i = 0; i < members.size(); ++i) {
      DeviceRecord& figure = figures[members[i]];
      figure.outside_bytes = parts[i];
      int64_t rest = parts[i];
      for (const auto& [owner, bytes] : owners) {
        const int64_t part = equal_parts(bytes, static_cast<int>(members.size()))[i];
        figure.outside_by_owner[owner] = part;
        rest -= part;
      }
      figure.outside_by_owner["other"] = std::max<int64_t>(0, rest);
    }
  }
}

/// The fields of /proc/self/status whose values are in kB, in bytes; none if a system's has not all that are needed.
std::map<std::string, int64_t> process_memory() {
  std::ifstream file("/proc/self/status");
  std::map<std::string, int64_t> memory;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, unit;
    int64_t value = 0;
    if (words >> name >> value >> unit && unit == "kB") memory[name] = value * 1024;
  }
  for (const char* const field : {"VmHWM:", "VmRSS:", "RssAnon:", "RssFile:", "RssShmem:"}) {
    if (memory.contains(field)) continue;
    fmt::print(
        stderr,
        "vitrine: warning: memory outside the pools is not known, and reported as 0: /proc/self/status has no line "
        "\"{} N kB\"; is /proc mounted?\n",
        field);
    return {};
  }
  return memory;
}

/// The process's peak beyond the pools and its parts, divided among CPU devices.
void measure_outside_on_host(int64_t pools, const std::map<std::string, int64_t>& held,
                             std::vector<DeviceRecord>& figures) {
  std::map<std::string, int64_t> memory = process_memory();
  if (memory.empty()) return;
  std::map<std::string, int64_t> owners = held;
  int64_t released = std::max<int64_t>(0, memory["VmHWM:"] - memory["VmRSS:"]);
  owners["weights"] = std::min(owners["weights"], released);
  released -= owners["weights"];
  int64_t heap = memory["RssAnon:"] - pools;
  for (const auto& [owner, bytes] : held) heap -= owner == "weights" ? 0 : bytes;
  owners["heap"] = std::max<int64_t>(0, heap);
  owners["code"] = memory["RssFile:"];
  owners["shared"] = memory["RssShmem:"];
  owners["released"] = released;
  const auto count = static_cast<int>(figures.size());
  const std::vector<int64_t> outside = equal_parts(std::max<int64_t>(0, memory["VmHWM:"] - pools), count);
  for (size_t d = 0; d < figures.size(); ++d) {
    figures[d].outside_bytes = outside[d];
    for (const auto& [owner, bytes] : owners) {
      if (bytes > 0) figures[d].outside_by_owner[owner] = equal_parts(bytes, count)[d];
    }
  }
}

}  // namespace

std::vector<DeviceRecord> measure_devices(Run& run, const std::map<std::string, int64_t>& held) {
  DeviceGroup& devices = *run.devices;
  std::vector<DeviceRecord> figures;
  int64_t pools = 0;
  for (int d = 0; d < devices.size(); ++d) {
    DeviceRecord device;
    device.device = devices[d].name();
    device.samples_per_step = run.engine->facts().batch.device_samples(run.first_rank() + d);
    device.plan = run.engine->facts().plans[static_cast<size_t>(d)];
    device.pool = devices[d].pool().statistics();
    pools += device.pool.reserved_bytes;
    figures.push_back(device);
  }
  if (devices[0].id().backend == Backend::cuda) {
    measure_outside_on_gpus(devices, figures);
    return figures;
  }
  measure_outside_on_host(pools, held, figures);
  return figures;
}

std::optional<ExactPrice> exact_price(const Options& options, const Job& job, const Run& run) {
  if (!options.exact) return std::nullopt;
  return plan_exact_price(job.model, *run.devices, run.engine->config(),
                          train_workload(options, job, options.steps, options.evaluate), run.engine->facts().plans);
}

void note_cores(RunRecord& record, const DeviceGroup& devices) {
  if (!devices.warnings().empty()) record.crowded = devices.warnings().front();
  record.equal_cpus = true;
  for (int d = 0; d < devices.size(); ++d) {
    const bool alike =
        devices[d].id().backend == Backend::cpu && devices[d].thread_count() == devices[0].thread_count();
    record.equal_cpus = record.equal_cpus && alike;
  }
}

std::vector<DeviceRecord> gather_devices(const Processes& processes, std::vector<DeviceRecord> mine) {
  if (processes.count() == 1) return mine;
  for (DeviceRecord& d : mine) d.device = fmt::format("rank {} {}", processes.process_group()->rank(), d.device);
  const std::vector<std::string> parts = processes.process_group()->gather("measurements", devices_text(mine));
  if (parts.empty()) return mine;
  std::vector<DeviceRecord> all;
  for (const std::string& part : parts) {
    for (DeviceRecord& device : parse_devices("measurements", part)) all.push_back(std::move(device));
  }
  // The charts of this process's devices stay: rank 0 comes first.
  std::move(mine.begin(), mine.end(), all.begin());
  for (size_t d = 0; d < all.size(); ++d) all[d].phases.ordinal = all[d].communication.ordinal = static_cast<int>(d);
  return all;
}

namespace {

// The first step of a process is like no other, and two are in flight.
constexpr StepRange kSteps{1, 3};

}  // namespace

RecordedSteps::RecordedSteps(const Options& options, int64_t first_step, int64_t step_count)
    : steps_(options.record_steps.empty() ? StepRange{first_step + kSteps.first_step, first_step + kSteps.last_step}
                                          : parse_step_range(options.record_steps)),
      records_(options.records()),
      all_(all(options)) {
  if (!options.record_steps.empty() && steps_.first_step >= step_count) {
    throw ConfigError(fmt::format("--record-steps {}: the run has {} step{}; name steps that it has",
                                  options.record_steps, step_count, step_count == 1 ? "" : "s"));
  }
  steps_.last_step = std::min(steps_.last_step, step_count - 1);
  steps_.first_step = std::min(steps_.first_step, steps_.last_step);
}

void RecordedSteps::before_step(DeviceGroup& devices, int64_t step) const {
  if (!records_ || all_ || (step != steps_.first_step && step != steps_.last_step + 1)) return;
  for (int d = 0; d < devices.size(); ++d) devices[d].pool().record_history(step == steps_.first_step);
}

std::optional<StepRange> RecordedSteps::spans() const {
  if (!records_) return std::nullopt;
  return all_ ? StepRange{} : StepRange{steps_.first_step, steps_.last_step + 1};
}

MemoryHistory RecordedSteps::history(const Pool& pool) const {
  const MemoryHistory& whole = pool.history();
  const std::optional<size_t> first = find_mark(whole, steps_.first_step);
  if (!first) return {};
  const auto end = std::find_if(whole.steps.begin(), whole.steps.end(),
                                [&](const StepMark& mark) { return mark.step > steps_.last_step; });
  return cut_history(whole, *first, static_cast<size_t>(end - whole.steps.begin()) - *first);
}

void write_memory_history(const std::string& path, DeviceGroup& devices, const RecordedSteps& steps) {
  std::vector<SnapshotDevice> snapshot;
  for (int d = 0; d < devices.size(); ++d) {
    const Pool& pool = devices[d].pool();
    snapshot.push_back({pool.statistics().reserved_bytes, steps.history(pool)});
  }
  write_output_file("--memory-history", path, [&](std::ostream& file) { write_memory_snapshot(file, snapshot); });
}

void write_trace_file(const std::string& path, DeviceGroup& devices, const std::vector<DeviceSpans>& spans) {
  std::vector<TraceProcess> processes;
  const std::string rank = devices.process_count() > 1 ? fmt::format("rank {} ", devices.process()) : std::string();
  // The waits for data are the same in every device's spans.
  processes.push_back({rank + "host", {{"data", spans.front().host}}, {}});
  for (const DeviceSpans& device : spans) {
    processes.push_back({rank + devices[device.ordinal].name(),
                         {{"compute", device.compute}, {"copy", device.copy}, {"communication", device.communication}},
                         devices[device.ordinal].pool().history()});
  }
  write_output_file("--trace", path, [&](std::ostream& file) { write_chrome_trace(file, processes); });
}

}  // namespace vitrine::tools
