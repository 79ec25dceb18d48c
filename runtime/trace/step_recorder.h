// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <vitrine/runtime/trace/communication_table.h>
#include <vitrine/runtime/trace/phase_table.h>

namespace vitrine {

/// Accumulates phase and communication tables of a device from spans that arrive piecemeal: completed steps are added
/// to the tables and their spans are dropped, so that a run of any length holds the spans of a few steps only.
class StepRecorder {
 public:
  /// keep  the steps whose spans are kept, for a trace file or a report
  StepRecorder(int ordinal, CommunicationGroup group, std::optional<StepRange> keep = {});

  /// Adds spans from the streams' poll_spans() and take_spans(). requires the compute stream to be polled before the
  /// others. Steps before `first_step` are not part of the tables.
  void add(DeviceSpans spans, int64_t first_step);
  /// Called when no more spans of these steps will come: adds all complete steps to the tables and drops the other
  /// spans.
  void finish(int64_t first_step);
  /// Drops the spans of steps that are not in the tables yet.
  void discard();

  const PhaseTable& phases() const { return phases_; }
  const CommunicationTable& communication() const { return communication_; }
  const DeviceSpans& kept() const { return kept_; }
  /// Number of spans held for steps that are not complete.
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

/// Adds `more`, from other steps of the same device, to `table`.
void add_phase_table(PhaseTable& table, const PhaseTable& more);

/// One step of a device, for a chart. Spans are cut to the step, nest strictly, and are sorted outermost first. What
/// view_step() returns stays valid after the devices, the engine and the model are gone.
struct StepView {
  int64_t step = 0;
  int64_t begin_ns = 0, end_ns = 0;  // from its mark to the next one
  std::vector<SpanRecord> compute, copy, communication, host;
  std::shared_ptr<const std::set<std::string>> names;  // the strings that these spans point to
};

/// Returns nothing if the spans do not contain that step or its end.
std::optional<StepView> view_step(const DeviceSpans& spans, int64_t step);

}  // namespace vitrine
