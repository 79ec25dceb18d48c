// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/trace/phase_table.h>

namespace vitrine {

/// Who takes part in the collectives of communication streams, and how they reduce.
struct CommunicationGroup {
  int ranks = 1;
  bool all_reduce = true;  // Phase::reduce is an all_reduce; else a reduce to ordinal 0, from which Phase::broadcast comes
};

/// One bucket, or what else is reduced or broadcast under a name, on one device.
struct CommunicationRow {
  Phase phase = Phase::reduce;
  std::string layer;        // "bucket 3"
  int64_t calls = 0;        // spans of the phase: one in a step. Within it there may be several collectives (gradients in 16 bits and totals in f32).
  int64_t moved_bytes = 0;  // what the device sends (a ring's share): for an all_reduce of B bytes 2 B (n - 1) / n
  int64_t buffer_bytes = 0;  // B, worked out from moved_bytes; to a byte for each collective
  /// The collectives themselves: the spans less all waits in them, from when all ranks are there until all are done.
  double hidden_seconds = 0;   // beside them the compute stream was in something other than a wait, a reduction or a broadcast
  double exposed_seconds = 0;  // it was in one of these, or in nothing
  /// Waits for peers that came later (cause "cpu:2 in all_reduce"), split in the same way. Zero on GPUs, where they are part of the collectives.
  double late_hidden_seconds = 0;
  double late_exposed_seconds = 0;
  double bus_factor = 0;  // busbw / algbw, as in nccl-tests: 2 (n - 1) / n for all_reduce, 1 for reduce and broadcast; 0 for one rank

  /// The layer, or the phase where it has none.
  std::string name() const { return layer.empty() ? phase_name(phase) : layer; }
  double seconds() const { return hidden_seconds + exposed_seconds; }
  /// buffer_bytes / seconds, in bytes per second; 0 when it took no time.
  double algbw() const { return seconds() > 0 ? static_cast<double>(buffer_bytes) / seconds() : 0; }
  double busbw() const { return algbw() * bus_factor; }
};

/// What reduction and broadcast cost on a device. Figures are sums over `steps` steps.
struct CommunicationTable {
  int ordinal = 0;
  int64_t steps = 0;
  std::vector<CommunicationRow> rows;  // in the order in which a step begins them

  /// All rows in one.
  CommunicationRow total() const;
};

/// The outermost spans of Phase::reduce and Phase::broadcast on the communication stream that name a step of the range which has an end
/// (make_phase_table() says when). They are found by the step they name, not by time: the stream may be in the next step's first bucket, waiting,
/// before that step begins. Waits for the device's own streams ("backward", "optimizer") are no communication.
CommunicationTable make_communication_table(const DeviceSpans& spans, const CommunicationGroup& group, StepRange range = {});

/// The index of the device that waited least for its peers: the others waited for it, so that what is exposed there is what the step paid. Of one or
/// more tables.
size_t least_late(std::span<const CommunicationTable> tables);

/// Adds `more`, of other steps of the same device, to `table`.
void add_communication_table(CommunicationTable& table, const CommunicationTable& more);

}  // namespace vitrine
