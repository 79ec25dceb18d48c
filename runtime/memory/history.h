// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <vitrine/runtime/memory/category.h>
#include <vitrine/runtime/trace/span.h>

namespace vitrine {

/// A block that was taken from a pool, or given back. Of blocks without bytes there is no record.
struct MemoryEvent {
  int64_t time_ns = 0;  // when the host issued it; the device comes to it later
  int64_t offset = 0;
  int64_t bytes = 0;  // negative: given back
  Category category = Category::activations;
  Phase phase = Phase::setup;  // in which this happened
  std::string tensor;          // whose the block is; also where it is given back
  std::string layer;
};

/// Where a step begins among the changes.
struct StepMark {
  int64_t step = 0;
  int64_t time_ns = 0;
  size_t change = 0;  // index of the first change of the step
};

/// What a pool held over a stretch of time: the blocks that were there when it began, as they were taken, then every change.
struct MemoryHistory {
  std::vector<MemoryEvent> at_start;  // by offset
  std::vector<MemoryEvent> changes;   // oldest first
  std::vector<StepMark> steps;        // of those that begin within it
};

/// The part from the mark of that index to the mark `count` marks on, or to the end where there are fewer.
MemoryHistory cut_history(const MemoryHistory& history, size_t first_mark, size_t count = 1);

/// Index of the first mark of a step; nothing where the history has none.
std::optional<size_t> find_mark(const MemoryHistory& history, int64_t step);

}  // namespace vitrine
