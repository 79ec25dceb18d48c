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

namespace {

/// Replays the changes.
class Replay {
 public:
  void take(const MemoryEvent& event) {
    held_.emplace(event.offset, timeline_.blocks.size());
    timeline_.blocks.push_back({event.offset, event.bytes, event.category, event.phase, event.tensor, event.layer,
                                timeline_.moments.size(), kHeld});
    by_category_[static_cast<size_t>(event.category)] += event.bytes;
    allocated_ += event.bytes;
  }

  void give_back(const MemoryEvent& event) {
    const auto found = held_.find(event.offset);
    VITRINE_ASSERT(found != held_.end(), "a freed block was allocated");
    timeline_.blocks[found->second].end = timeline_.moments.size();
    held_.erase(found);
    by_category_[static_cast<size_t>(event.category)] += event.bytes;
    allocated_ += event.bytes;
  }

  void note(int64_t time_ns, Phase phase, const std::string& layer) {
    MemoryMoment moment{time_ns, phase, layer, by_category_, 0};
    if (!held_.empty()) {
      const HeldBlock& topmost = timeline_.blocks[held_.rbegin()->second];
      moment.extent_bytes = topmost.offset + topmost.bytes;
    }
    moment.by_category[static_cast<size_t>(Category::fragmentation)] = moment.extent_bytes - allocated_;
    timeline_.moments.push_back(moment);
    timeline_.peak_bytes = std::max(timeline_.peak_bytes, moment.extent_bytes);
    if (allocated_ < most_allocated_ || (allocated_ == most_allocated_ && by_category_ <= most_by_category_)) return;
    most_allocated_ = allocated_;
    most_by_category_ = by_category_;
    timeline_.peak = timeline_.moments.size() - 1;
  }

  MemoryTimeline finish() {
    for (const auto& [offset, block] : held_) timeline_.blocks[block].end = timeline_.moments.size();
    return std::move(timeline_);
  }

 private:
  static constexpr size_t kHeld = 0;
  MemoryTimeline timeline_;
  std::map<int64_t, size_t> held_;  // offset -> index of the block
  BytesByCategory by_category_{}, most_by_category_{};
  int64_t allocated_ = 0, most_allocated_ = 0;
};

}  // namespace

MemoryTimeline make_memory_timeline(const MemoryHistory& history) {
  Replay replay;
  for (const MemoryEvent& block : history.at_start) replay.take(block);
  const int64_t begin_ns = !history.steps.empty()     ? history.steps.front().time_ns
                           : !history.changes.empty() ? history.changes.front().time_ns
                                                      : 0;
  replay.note(begin_ns, Phase::step, {});
  for (const MemoryEvent& change : history.changes) {
    if (change.bytes > 0) {
      replay.take(change);
    } else {
      replay.give_back(change);
    }
    replay.note(change.time_ns, change.phase, change.layer);
  }
  return replay.finish();
}

}  // namespace vitrine
