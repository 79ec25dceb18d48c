// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace vitrine
