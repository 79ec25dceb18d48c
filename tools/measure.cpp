// SPDX-License-Identifier: Apache-2.0
#include "tools/measure.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include <unistd.h>

#include "runtime/error.h"

namespace vitrine::tools {

namespace {

void append(std::vector<SpanRecord>& to, const std::vector<SpanRecord>& from, const StepRange& steps) {
  std::copy_if(from.begin(), from.end(), std::back_inserter(to),
               [&](const SpanRecord& span) { return span.info.step >= steps.first_step && span.info.step <= steps.last_step; });
}

}  // namespace

PhaseRecorder::PhaseRecorder(Run& run, std::optional<StepRange> keep)
    : devices_(*run.devices),
      group_{devices_.world_size(), run.engine->config().scheme.reduce == Reduce::allreduce},
      keep_(keep),
      tables_(static_cast<size_t>(devices_.size())),
      communication_(tables_.size()),
      kept_(tables_.size()) {
  for (size_t d = 0; d < tables_.size(); ++d) tables_[d].ordinal = communication_[d].ordinal = kept_[d].ordinal = static_cast<int>(d);
}

void PhaseRecorder::collect(const std::vector<SpanRecord>& host, int64_t first_step) {
  for (int d = 0; d < devices_.size(); ++d) devices_[d].compute().mark_step();
  devices_.synchronize();
  StepRange range;
  range.first_step = first_step;
  for (int d = 0; d < devices_.size(); ++d) {
    Device& device = devices_[d];
    DeviceSpans spans{d, device.compute().stream().take_spans(), device.copy().stream().take_spans(), device.communication().stream().take_spans(),
                      host};
    add_phase_table(tables_[static_cast<size_t>(d)], make_phase_table(spans, range));
    add_communication_table(communication_[static_cast<size_t>(d)], make_communication_table(spans, group_, range));
    if (!keep_) continue;
    DeviceSpans& kept = kept_[static_cast<size_t>(d)];
    append(kept.compute, spans.compute, *keep_);
    append(kept.copy, spans.copy, *keep_);
    append(kept.communication, spans.communication, *keep_);
    append(kept.host, spans.host, *keep_);
  }
}

void PhaseRecorder::discard() {
  devices_.synchronize();
  for (int d = 0; d < devices_.size(); ++d) {
    devices_[d].compute().stream().take_spans();
    devices_[d].copy().stream().take_spans();
    devices_[d].communication().stream().take_spans();
  }
}

void add_phase_table(PhaseTable& table, const PhaseTable& more) {
  table.steps += more.steps;
  table.wall_seconds += more.wall_seconds;
  for (const PhaseRow& row : more.rows) {
    const auto place =
        std::lower_bound(table.rows.begin(), table.rows.end(), row, [](const PhaseRow& a, const PhaseRow& b) { return a.phase < b.phase; });
    if (place == table.rows.end() || place->phase != row.phase) {
      table.rows.insert(place, row);
      continue;
    }
    place->seconds += row.seconds;
    place->hidden_seconds += row.hidden_seconds;
    place->bytes += row.bytes;
    place->calls += row.calls;
  }
  for (const WaitRow& row : more.waits) {
    const auto place = std::find_if(table.waits.begin(), table.waits.end(), [&](const WaitRow& known) { return known.cause == row.cause; });
    if (place == table.waits.end()) {
      table.waits.push_back(row);
    } else {
      place->seconds += row.seconds;
    }
  }
  if (table.wall_seconds <= 0.0) return;
  table.named_share = 0.0;
  for (PhaseRow& row : table.rows) table.named_share += row.share = row.seconds / table.wall_seconds;
  for (WaitRow& row : table.waits) row.share = row.seconds / table.wall_seconds;
  std::stable_sort(table.waits.begin(), table.waits.end(), [](const WaitRow& a, const WaitRow& b) { return a.seconds > b.seconds; });
}

namespace {

/// What a GPU has in use beyond the pools on it, divided among the logical devices that share it.
void measure_outside_on_gpus(DeviceGroup& devices, std::vector<DeviceFigures>& figures) {
  std::map<int, std::vector<size_t>> sharing;
  for (int d = 0; d < devices.size(); ++d) sharing[devices[d].id().index].push_back(static_cast<size_t>(d));
  for (const auto& [gpu, members] : sharing) {
    int64_t outside = devices[static_cast<int>(members[0])].gpu_used_bytes();
    for (const size_t d : members) outside -= figures[d].pool.reserved_bytes;
    const std::vector<int64_t> parts = equal_parts(std::max<int64_t>(0, outside), static_cast<int>(members.size()));
    for (size_t i = 0; i < members.size(); ++i) figures[members[i]].outside_bytes = parts[i];
  }
}

}  // namespace

std::vector<DeviceFigures> measure_devices(Run& run) {
  DeviceGroup& devices = *run.devices;
  std::vector<DeviceFigures> figures;
  int64_t pools = 0;
  for (int d = 0; d < devices.size(); ++d) {
    DeviceFigures device;
    device.device = devices[d].name();
    device.samples_per_step = run.engine->batch_plan().device_samples(run.first_rank() + d);
    device.plan = run.engine->device_plans()[static_cast<size_t>(d)];
    device.pool = devices[d].pool().statistics();
    pools += device.pool.reserved_bytes;
    figures.push_back(device);
  }
  if (devices[0].id().backend == Backend::cuda) {
    measure_outside_on_gpus(devices, figures);
    return figures;
  }
  const std::vector<int64_t> outside = equal_parts(std::max<int64_t>(0, resident_bytes() - pools), devices.size());
  for (size_t d = 0; d < figures.size(); ++d) figures[d].outside_bytes = outside[d];
  return figures;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  if (!(file >> total_pages >> resident_pages)) throw DataError("/proc/self/statm: the resident set cannot be read; is /proc mounted?");
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace vitrine::tools
