// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/memory/history.h"
#include "tools/program/run.h"

namespace vitrine::tools {

/// The steps of a run whose memory and spans are kept: a few, so that long runs can be looked into too. Steps count from 0.
class RecordedSteps {
 public:
  /// step_count  of the run, which may be too short for the steps asked for
  RecordedSteps(const Options& options, int64_t step_count);

  /// Begins and ends the pools' histories; to be told of each step before it is issued. A trace without --record-steps has them from the beginning,
  /// which is open_run()'s business.
  void before_step(DeviceGroup& devices, int64_t step) const;
  /// Whose spans are kept: one more step, whose beginning ends the last one, and in a trace without --record-steps all. Nothing when nobody asks.
  std::optional<StepRange> spans() const;
  /// The one that charts show: in the middle.
  int64_t shown() const { return (steps_.first_step + steps_.last_step) / 2; }
  /// Of one device: the steps that were recorded, without what a trace has before and behind them. Empty when none of them was run.
  MemoryHistory history(const Pool& pool) const;
  /// The whole run is recorded.
  static bool all(const Options& options) { return !options.trace.empty() && options.record_steps.empty(); }

 private:
  StepRange steps_;
  bool records_, all_;
};

/// --memory-history: what the devices held in those steps. throws DataError.
void write_memory_history(const std::string& path, DeviceGroup& devices, const RecordedSteps& steps);

}  // namespace vitrine::tools
