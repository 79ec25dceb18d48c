// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/trace/step_recorder.h"
#include "tools/program/run.h"

namespace vitrine::tools {

/// Adds up where the time of steps went and what communication cost, device by device, over any number of stretches of consecutive steps.
class PhaseRecorder {
 public:
  /// keep  the steps whose spans are kept, for a trace file or a report
  explicit PhaseRecorder(Run& run, std::optional<StepRange> keep = {});

  /// Every how many steps poll() is called, so that few spans are held.
  static constexpr int64_t kStepsBetweenPolls = 16;
  /// Books the steps that are over, and forgets their spans; waits for nothing. Steps before `first_step` are left out.
  ///   host  the waits for data since the last call
  void poll(std::vector<SpanRecord>&& host, int64_t first_step);
  /// Ends a stretch: marks its end, waits for the devices, and books its spans.
  void collect(std::vector<SpanRecord>&& host, int64_t first_step);
  /// Waits for the devices and forgets their spans (of an evaluation).
  void discard();

  /// One for each device.
  std::vector<PhaseTable> tables() const;
  std::vector<CommunicationTable> communication() const;
  std::vector<DeviceSpans> kept_spans() const;

 private:
  DeviceGroup& devices_;
  std::vector<StepRecorder> recorders_;
};

/// What one device held.
struct DeviceFigures {
  std::string device;
  int64_t samples_per_step = 0;
  DevicePlan plan;
  PoolStatistics pool;
  int64_t outside_bytes = 0;
};

/// Plan, pool and what lies outside the pools: on a GPU what it has in use beyond the pools (context, libraries, other processes). CPU devices share
/// one process: what it holds outside its pools is divided equally among them, so that the devices' pools and outside bytes add up to its resident
/// set.
std::vector<DeviceFigures> measure_devices(Run& run);

/// Resident set of this process. throws DataError where the system does not tell.
int64_t resident_bytes();

}  // namespace vitrine::tools
