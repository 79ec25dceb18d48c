// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/trace/phase_table.h>

namespace vitrine {

/// Layer of the spans in which sums over a micro-batch are all-reduced, whatever the scheme's reduction.
inline constexpr const char* kBatchStatistics = "batch statistics";

/// Begin of the layer of spans in which a bucket's gradients are reduce-scattered, or its parameters all-gathered.
inline constexpr const char *kShardsOf = "shards of ", *kParametersOf = "parameters of ";

/// How the ranks reduce.
struct CommunicationGroup {
  bool all_reduce = true;  // Phase::reduce is an all_reduce or a reduce_scatter; otherwise a reduce to ordinal 0, whose
                           // result Phase::broadcast sends
};

/// "reduce-scatter of bucket 3" or "all-gather of bucket 3", of a span's layer; empty for all others.
std::string sharded_collective(const std::string& layer);

/// One bucket, or another named reduction or broadcast, on one device.
struct CommunicationRow {
  Phase phase = Phase::reduce;
  std::string layer;  // "bucket 3"
  int64_t calls = 0;  // spans of the phase: one per step, possibly with several collectives (gradients in 16 bits and
                      // totals in f32); of batch statistics, one for each sum
  /// Through the device's link, in the direction that carries more. In a ring, of B bytes: all_reduce 2 B (n - 1) / n,
  /// reduce_scatter and all_gather B (n - 1) / n.
  int64_t moved_bytes = 0;
  int64_t buffer_bytes = 0;  // B: what is reduced, or sent to all
  /// The collectives themselves: their spans less all waits in them, from the arrival of the last rank to the end.
  double hidden_seconds =
      0;  // meanwhile the compute stream worked, in a span other than a wait, a reduction or a broadcast
  double exposed_seconds = 0;  // it did not
  /// Waits for late peers (cause "cpu:2 in all_reduce"), split in the same way. Zero on GPUs, where they are part of
  /// the collectives.
  double late_hidden_seconds = 0;
  double late_exposed_seconds = 0;
  double bus_factor =
      0;  // busbw / algbw, as in nccl-tests: 2 (n - 1) / n for all_reduce, (n - 1) / n for reduce_scatter and
          // all_gather, 1 for reduce and broadcast; 0 for one rank; of a sum the mean by buffer_bytes

  /// "reduce-scatter of bucket 3", "all-gather of bucket 3"; else the layer, or the phase if there is no layer.
  std::string name() const;
  double seconds() const { return hidden_seconds + exposed_seconds; }
  double late_seconds() const { return late_hidden_seconds + late_exposed_seconds; }
  /// Shares of seconds(); 0 if it took no time.
  double hidden_share() const { return seconds() > 0 ? hidden_seconds / seconds() : 0; }
  double exposed_share() const { return seconds() > 0 ? exposed_seconds / seconds() : 0; }
  /// buffer_bytes / seconds, in bytes per second; 0 if it took no time.
  double algbw() const { return seconds() > 0 ? static_cast<double>(buffer_bytes) / seconds() : 0; }
  double busbw() const { return algbw() * bus_factor; }
};

/// Cost of reduction and broadcast on a device. Values are sums over `steps` steps.
struct CommunicationTable {
  int ordinal = 0;
  int64_t steps = 0;
  std::vector<CommunicationRow> rows;  // in the order in which a step begins them

  /// The sum of all rows.
  CommunicationRow total() const;
};

/// Uses the outermost spans of Phase::reduce and Phase::broadcast on the communication stream that belong to a complete
/// step of the range (see make_phase_table()). They are found by their step, not by time: the stream may wait in the
/// next step's first bucket before that step begins. Waits for the device's own streams ("backward", "optimizer") do
/// not count as communication.
CommunicationTable make_communication_table(const DeviceSpans& spans, const CommunicationGroup& group,
                                            StepRange range = {});

/// Index of the device that waited least for its peers. The others waited for it, so its exposed time is what the step
/// paid.
///   requires  at least one table
size_t least_late(std::span<const CommunicationTable> tables);

/// Adds `more`, from other steps of the same device, to `table`.
void add_communication_table(CommunicationTable& table, const CommunicationTable& more);

}  // namespace vitrine
