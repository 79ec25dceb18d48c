// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <vitrine/runtime/trace/communication_table.h>
#include <vitrine/runtime/trace/phase_table.h>

namespace vitrine {

/// Adds up where the time of a device's steps went and what communication cost, from spans that come bit by bit: steps that are over become part of
/// the tables, and their spans are forgotten. So a run of any length holds the spans of a few steps.
class StepRecorder {
 public:
  /// keep  the steps whose spans are kept, for a trace file or a report
  StepRecorder(int ordinal, CommunicationGroup group, std::optional<StepRange> keep = {});

  /// Takes spans as the streams' poll_spans() and take_spans() gave them, the compute stream's polled before the others'. Steps before `first_step`
  /// are left out of the tables.
  void add(DeviceSpans spans, int64_t first_step);
  /// No more spans of these steps will come: books all that have an end, and forgets the rest.
  void finish(int64_t first_step);
  /// Forgets the spans of steps that are not booked yet.
  void discard();

  const PhaseTable& phases() const { return phases_; }
  const CommunicationTable& communication() const { return communication_; }
  const DeviceSpans& kept() const { return kept_; }
  /// Spans that are held because their steps are not over.
  size_t pending_spans() const;

 private:
  void book(StepRange range);
  void forget_before(int64_t time_ns, int64_t step);

  CommunicationGroup group_;
  std::optional<StepRange> keep_;
  PhaseTable phases_;
  CommunicationTable communication_;
  DeviceSpans pending_, kept_;
  int64_t booked_;  // the last step that is in the tables
};

/// Adds `more`, of other steps of the same device, to `table`.
void add_phase_table(PhaseTable& table, const PhaseTable& more);

}  // namespace vitrine
