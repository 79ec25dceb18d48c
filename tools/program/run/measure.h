// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/history.h"
#include "runtime/trace/step_recorder.h"
#include "tools/program/process/processes.h"
#include "tools/program/record/record.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

/// Sums phases and communication of each device over any number of ranges of consecutive steps.
class PhaseRecorder {
 public:
  /// keep  the steps whose spans are kept, for a trace file or a report
  explicit PhaseRecorder(Run& run, std::optional<StepRange> keep = {});

  /// Steps between calls of poll(), so that few spans are held.
  static constexpr int64_t kStepsBetweenPolls = 16;
  /// Adds the finished steps and drops their spans; does not wait. Steps before `first_step` are left out.
  ///   host  the waits for data since the last call
  void poll(std::vector<SpanRecord>&& host, int64_t first_step);
  /// Ends a range of steps: marks its end, waits for the devices, and adds its spans.
  void collect(std::vector<SpanRecord>&& host, int64_t first_step);
  /// Waits for the devices and drops their spans, which belong to an evaluation.
  void discard();

  /// One for each device.
  std::vector<PhaseTable> tables() const;
  /// Adds each device's time and communication to its record.
  void add_to(std::vector<DeviceRecord>& devices) const;
  /// Of the devices that are left.
  std::vector<DeviceSpans> kept_spans() const;

 private:
  DeviceGroup& devices_;
  std::vector<StepRecorder> recorders_;  // by device
};

/// Plan, pool and memory outside the pools. On a GPU that is what is in use beyond the pools (context, libraries, other
/// processes). CPU devices share one process: what its resident set exceeded the pools by at its peak is divided
/// equally among them, so that the devices' pools and outside bytes add up to that peak.
///   held  bytes that this process holds outside the pools, by owner; "weights": that it held for a time
/// throws  DataError if the resident set cannot be read
std::vector<DeviceRecord> measure_devices(Run& run, const std::map<std::string, int64_t>& held);

/// What exact mode costs by plan; nothing without it.
std::optional<ExactPrice> exact_price(const Options& options, const Job& job, const Run& run);

/// Fills crowded and equal_cpus.
void note_cores(RunRecord& record, const DeviceGroup& devices);

/// The devices of all processes, in rank order, named "rank 1 cpu:0". Every process calls it; a single process gets
/// `mine` back.
std::vector<DeviceRecord> gather_devices(const Processes& processes, std::vector<DeviceRecord> mine);

/// The steps of a run whose memory and spans are kept: only a few, so that long runs can be inspected too. Steps count
/// from 0.
class RecordedSteps {
 public:
  /// first_step, step_count  of this process and of the whole run, which may be too short for the steps asked for
  RecordedSteps(const Options& options, int64_t first_step, int64_t step_count);

  /// Starts and ends the pools' histories. Call it before each step is issued. A trace without --record-steps has
  /// histories from the beginning, which open_run() starts.
  void before_step(DeviceGroup& devices, int64_t step) const;
  /// The steps whose spans are kept: one more, whose start ends the last one; all of them in a trace without
  /// --record-steps. Nothing if none is needed.
  std::optional<StepRange> spans() const;
  /// The step that charts show: the middle one.
  int64_t shown() const { return (steps_.first_step + steps_.last_step) / 2; }
  /// The history of one device over the recorded steps, without what a trace has before and after them. Empty if none
  /// of them ran.
  MemoryHistory history(const Pool& pool) const;
  /// Whether the whole run is recorded.
  static bool all(const Options& options) { return !options.trace.empty() && options.record_steps.empty(); }

 private:
  StepRange steps_;
  bool records_, all_;
};

/// Writes --memory-history: what the devices held in those steps. throws DataError.
void write_memory_history(const std::string& path, DeviceGroup& devices, const RecordedSteps& steps);
/// Writes spans and memory history of the devices as a Chrome trace. throws DataError.
void write_trace_file(const std::string& path, DeviceGroup& devices, const std::vector<DeviceSpans>& spans);

}  // namespace vitrine::tools
