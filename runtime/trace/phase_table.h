// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/trace/span.h>

namespace vitrine {

/// Spans of one device, from take_spans() of its streams, and of the host (data loading), in any order.
struct DeviceSpans {
  int ordinal = 0;
  std::vector<SpanRecord> compute, copy, communication;
  std::vector<SpanRecord> host;
};

/// The steps to include: marks on the compute stream with first_step <= step <= last_step.
struct StepRange {
  int64_t first_step = std::numeric_limits<int64_t>::min();
  int64_t last_step = std::numeric_limits<int64_t>::max();
};

/// Layer of the spans in which exact mode adds the gradients of a device's leaves.
inline constexpr const char* kLeafSums = "sums of leaves";

/// One phase on one device.
struct PhaseRow {
  Phase phase = Phase::setup;
  int ordinal = 0;
  double seconds = 0;         // share of the steps' wall time that belongs to this phase only
  double share = 0;           // seconds / wall time
  int64_t bytes = 0;          // moved
  int64_t calls = 0;          // spans of the phase; nested spans of the same phase do not count again
  double hidden_seconds = 0;  // time in which a stream was in this phase while the wall time belonged to another
};

/// Wall time of one cause of waiting.
struct WaitRow {
  std::string cause;
  double seconds = 0;
  double share = 0;
};

/// Distribution of the wall time of a device's steps. The rows' exclusive seconds sum to wall_seconds.
struct PhaseTable {
  int ordinal = 0;
  int64_t steps = 0;
  double wall_seconds = 0;
  std::vector<PhaseRow> rows;  // in the order of Phase, without phases that took no time, moved nothing and hid nothing
  std::vector<WaitRow> waits;  // longest first; sum to the row of Phase::wait
  double named_share = 1;      // sum of the rows' shares
  double leaf_seconds = 0;     // of the compute stream's spans of kLeafSums, which belong to backward
};

/// A step lasts from its mark (a span of Phase::step) on the compute stream to the next mark of any step; the last mark
/// only ends a step. Each moment of a step belongs to
///   1. the innermost span of the compute stream, unless it is a wait or there is none; else
///   2. the innermost span of the communication stream, likewise; else of the copy stream; else
///   3. a wait with its cause: of the compute stream, else of the communication, else of the copy stream; else
///   4. Phase::data during a host span of it; else a wait with the cause "host".
/// Bytes and calls belong to spans that begin in a step.
PhaseTable make_phase_table(const DeviceSpans& spans, StepRange range = {});

}  // namespace vitrine
