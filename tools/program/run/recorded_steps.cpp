// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/recorded_steps.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/trace/chrome_trace.h"
#include "runtime/trace/memory_snapshot.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {

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
