// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/recorder.h"

#include <algorithm>

#include "runtime/clock.h"

namespace vitrine {

void MemoryRecorder::set_position(Phase phase, std::string_view layer) {
  phase_ = phase;
  if (*layer_ != layer) layer_ = intern(layer);
}

void MemoryRecorder::on_allocate(int64_t offset, int64_t bytes, Category category, std::string_view tensor) {
  const Block block{bytes, category, phase_, intern(tensor), layer_};
  blocks_.insert_or_assign(offset, block);
  if (recording_)
    history_.changes.push_back({steady_now_ns(), offset, bytes, category, phase_, *block.tensor, *layer_});
}

void MemoryRecorder::on_free(int64_t offset) {
  const auto found = blocks_.find(offset);
  const Block& block = found->second;
  if (recording_)
    history_.changes.push_back({steady_now_ns(), offset, -block.bytes, block.category, phase_, *block.tensor, *layer_});
  blocks_.erase(found);
}

void MemoryRecorder::start() {
  history_ = MemoryHistory{};
  const int64_t now_ns = steady_now_ns();
  for (const auto& [offset, block] : blocks_) {
    history_.at_start.push_back(
        {now_ns, offset, block.bytes, block.category, block.phase, *block.tensor, *block.layer});
  }
  recording_ = true;
}

void MemoryRecorder::mark_step(int64_t step) {
  set_position(Phase::step, "");
  if (recording_) history_.steps.push_back({step, steady_now_ns(), history_.changes.size()});
}

const std::string* MemoryRecorder::intern(std::string_view name) {
  const auto found = names_.find(name);
  if (found != names_.end()) return &*found;
  if (names_.size() >= most_names_) drop_unused_names();
  return &*names_.emplace(name).first;
}

void MemoryRecorder::drop_unused_names() {
  std::set<const std::string*> used{layer_};
  for (const auto& [offset, block] : blocks_) used.insert({block.tensor, block.layer});
  std::erase_if(names_, [&](const std::string& name) { return !used.contains(&name); });
  most_names_ = std::max(kFewNames, 2 * names_.size());
}

}  // namespace vitrine
