// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/memory/history.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

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
