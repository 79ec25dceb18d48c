// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/memory/pool.h>
#include <vitrine/runtime/trace/span.h>

namespace vitrine {

/// Spans of one stream (or of a host thread).
struct TraceThread {
  std::string name;
  std::vector<SpanRecord> spans;
};

/// One device of one rank, or its host.
struct TraceProcess {
  std::string name;                  // "rank 0, cpu:1"
  std::vector<TraceThread> threads;  // in display order
  MemoryHistory memory;              // Pool::history()
};

/// Writes the spans as Chrome's Trace Event JSON, which Perfetto opens: a process for each device, a thread for each
/// stream, a complete event for each span (args: phase, layer, operation, cause, step, bytes), an instant for each
/// step, and a counter of memory by category for the period of the history. Slices of a thread nest strictly: a span
/// that, due to clock rounding, outlasts the one around it or overlaps the next one is cut. Times start at the first
/// event.
void write_chrome_trace(std::ostream& out, std::span<const TraceProcess> processes);

}  // namespace vitrine
