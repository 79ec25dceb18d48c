// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <vitrine/runtime/memory/history.h>

namespace vitrine {

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
