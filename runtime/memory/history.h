// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <vitrine/runtime/memory/category.h>
#include <vitrine/runtime/phase.h>

namespace vitrine {

/// Allocation or release of a block of a pool. Blocks without bytes are not recorded.
struct MemoryEvent {
  int64_t time_ns = 0;  // when the host issued it; the device reaches it later
  int64_t offset = 0;
  int64_t bytes = 0;  // negative: released
  Category category = Category::activations;
  Phase phase = Phase::setup;  // at the time of the change
  std::string tensor;          // name of the block's tensor, also for a release
  std::string layer;
};

/// Position of a step among the changes.
struct StepMark {
  int64_t step = 0;
  int64_t time_ns = 0;
  size_t change = 0;  // index of the first change of the step
};

/// Content of a pool over a period: the blocks allocated at its start, with their allocation, then every change.
struct MemoryHistory {
  std::vector<MemoryEvent> at_start;  // by offset
  std::vector<MemoryEvent> changes;   // oldest first
  std::vector<StepMark> steps;        // that begin within the period
};

/// Cuts out the part from mark `first_mark` up to the mark `count` marks later, or to the end.
MemoryHistory cut_history(const MemoryHistory& history, size_t first_mark, size_t count = 1);

/// Index of the first mark of a step, or nothing.
std::optional<size_t> find_mark(const MemoryHistory& history, int64_t step);

/// Content of a pool between two changes.
struct MemoryMoment {
  int64_t time_ns = 0;
  Phase phase = Phase::setup;  // of the preceding change; Phase::step at the beginning
  std::string layer;
  BytesByCategory by_category{};  // includes fragmentation; sums to the extent of the slab
  int64_t extent_bytes = 0;
};

/// A block and the moments in which it was allocated: first <= m < end.
struct HeldBlock {
  int64_t offset = 0;
  int64_t bytes = 0;
  Category category = Category::activations;
  Phase phase = Phase::setup;  // of its allocation
  std::string tensor;
  std::string layer;
  size_t first = 0;
  size_t end = 0;
};

/// Content of a pool from change to change, and the blocks that it held. The axis is the order of the changes, which is
/// the same on meta devices, where no time passes, and on devices whose pool the host issues ahead of their work.
struct MemoryTimeline {
  std::vector<MemoryMoment> moments;  // one more than there are changes
  std::vector<HeldBlock> blocks;      // in order of allocation; those from before the beginning by offset
  size_t peak =
      0;  // the first moment with the largest sum of blocks (of equal sums the one with the larger categories)
  int64_t peak_bytes = 0;  // the largest extent

  /// Whether a block of `blocks` was allocated at the peak.
  bool holds_at_peak(const HeldBlock& block) const { return block.first <= peak && peak < block.end; }
};

MemoryTimeline make_memory_timeline(const MemoryHistory& history);

}  // namespace vitrine
