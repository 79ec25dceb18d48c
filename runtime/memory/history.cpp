// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/history.h"

#include <algorithm>
#include <map>

#include "runtime/error.h"

namespace vitrine {

MemoryHistory cut_history(const MemoryHistory& history, size_t first_mark, size_t count) {
  VITRINE_ASSERT(first_mark < history.steps.size(), "the history has such a mark");
  const size_t begin = history.steps[first_mark].change, last_mark = first_mark + count;
  const size_t end = last_mark < history.steps.size() ? history.steps[last_mark].change : history.changes.size();
  std::map<int64_t, const MemoryEvent*> held;
  for (const MemoryEvent& block : history.at_start) held[block.offset] = &block;
  for (size_t i = 0; i < begin; ++i) {
    const MemoryEvent& change = history.changes[i];
    if (change.bytes > 0) {
      held[change.offset] = &change;
    } else {
      held.erase(change.offset);
    }
  }
  MemoryHistory part;
  for (const auto& [offset, block] : held) part.at_start.push_back(*block);
  const auto at = [&](size_t i) { return history.changes.begin() + static_cast<std::ptrdiff_t>(i); };
  part.changes.assign(at(begin), at(end));
  for (size_t m = first_mark; m < std::min(last_mark, history.steps.size()); ++m) {
    part.steps.push_back(history.steps[m]);
    part.steps.back().change -= begin;
  }
  return part;
}

std::optional<size_t> find_mark(const MemoryHistory& history, int64_t step) {
  const auto found = std::ranges::find_if(history.steps, [=](const StepMark& mark) { return mark.step == step; });
  if (found == history.steps.end()) return std::nullopt;
  return static_cast<size_t>(found - history.steps.begin());
}

}  // namespace vitrine
