// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/pool_placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/memory/offset_allocator.h"
#include "runtime/memory/placement.h"

namespace vitrine {
namespace {

class PoolPlacer {
 public:
  explicit PoolPlacer(const PoolRecord& record)
      : record_(record), sizes_(static_cast<size_t>(record.blocks), 0), released_(sizes_.size(), kNever) {
    result_.offsets.assign(sizes_.size(), 0);
    streams_.assign(sizes_.size(), StreamRole::compute);
    int64_t sum = 0;
    for (size_t e = 0; e < record.events.size(); ++e) {
      const PoolRecord::Event& event = record.events[e];
      const auto block = static_cast<size_t>(event.block);
      if (event.bytes > 0) {
        sizes_[block] = event.bytes;
        streams_[block] = event.stream;
      } else {
        released_[block] = e;
      }
      sum += event.bytes > 0 ? event.bytes : -sizes_[block];
      enough_ = std::max(enough_, sum);
    }
  }

  PoolPlacement place() {
    place_setup(record_.sections.empty() ? record_.events.size() : record_.sections.front().begin);
    for (size_t s = 0; s < record_.sections.size(); ++s) {
      const size_t end = s + 1 < record_.sections.size() ? record_.sections[s + 1].begin : record_.events.size();
      place_section(record_.sections[s].key, record_.sections[s].begin, end);
    }
    return std::move(result_);
  }

 private:
  static constexpr size_t kNever = static_cast<size_t>(-1);

  void place_setup(size_t end) {
    OffsetAllocator allocator;
    for (size_t e = 0; e < end; ++e) {
      const PoolRecord::Event& event = record_.events[e];
      const auto block = static_cast<size_t>(event.block);
      if (event.bytes > 0) {
        result_.offsets[block] = allocator.allocate(event.bytes);
        in_use_.insert(block);
      } else {
        allocator.free(result_.offsets[block], sizes_[block]);
        in_use_.erase(block);
      }
      result_.height = std::max(result_.height, allocator.extent());
    }
  }

  void place_section(const SectionKey& key, size_t begin, size_t end) {
    const auto release_in_section = [&](size_t block) {
      return static_cast<int32_t>(std::min(released_[block], end) - begin);
    };
    std::vector<BlockLifetime> lifetimes;
    std::vector<size_t> blocks;
    for (const size_t block : in_use_) {
      // A block that is released before the section's first allocation restricts no other block.
      lifetimes.push_back({sizes_[block], -1, release_in_section(block), static_cast<int32_t>(streams_[block]),
                           result_.offsets[block]});
      blocks.push_back(block);
    }
    for (size_t e = begin; e < end; ++e) {
      const PoolRecord::Event& event = record_.events[e];
      const auto block = static_cast<size_t>(event.block);
      if (event.bytes > 0) {
        lifetimes.push_back({event.bytes, static_cast<int32_t>(e - begin), release_in_section(block),
                             static_cast<int32_t>(event.stream), BlockLifetime::kAnywhere});
        blocks.push_back(block);
        in_use_.insert(block);
      } else {
        in_use_.erase(block);
      }
    }
    const Placement& placement = solve(std::move(lifetimes));
    result_.height = std::max(result_.height, placement.height);
    for (size_t i = 0; i < blocks.size(); ++i) result_.offsets[blocks[i]] = placement.offsets[i];
    PoolPlacement::Blocks list;
    for (size_t e = begin; e < end; ++e) {
      const PoolRecord::Event& event = record_.events[e];
      if (event.bytes > 0)
        list.push_back({event.bytes, event.stream, result_.offsets[static_cast<size_t>(event.block)]});
    }
    note_section(key, std::move(list));
  }

  const Placement& solve(std::vector<BlockLifetime> lifetimes) {
    // Micro-batches, and the first step and the next, are the same problem.
    const auto known = std::ranges::find_if(solved_, [&](const auto& problem) { return problem.first == lifetimes; });
    if (known != solved_.end()) return known->second;
    Placement placement = place_blocks(lifetimes, std::max(enough_, result_.height));
    return solved_.emplace_back(std::move(lifetimes), std::move(placement)).second;
  }

  void note_section(const SectionKey& key, PoolPlacement::Blocks list) {
    std::vector<PoolPlacement::Blocks>& lists = result_.block_lists;
    const auto known = std::ranges::find(lists, list);
    const auto index = static_cast<size_t>(known - lists.begin());
    if (known == lists.end()) lists.push_back(std::move(list));
    result_.sections[key].push_back(index);
  }

  const PoolRecord& record_;
  std::vector<int64_t> sizes_;       // by block
  std::vector<size_t> released_;     // by block: the event, or kNever
  std::vector<StreamRole> streams_;  // by block
  std::set<size_t> in_use_;
  int64_t enough_ = 0;  // the largest sum of blocks
  std::vector<std::pair<std::vector<BlockLifetime>, Placement>> solved_;
  PoolPlacement result_;
};

}  // namespace

PoolPlacement place_pool(const PoolRecord& record) { return PoolPlacer(record).place(); }

void PlacementCursor::begin_section(const SectionKey& key) {
  blocks_ = nullptr;
  next_ = 0;
  const auto found = placement_->sections.find(key);
  if (found == placement_->sections.end()) return;
  const size_t times = begun_[key]++;
  blocks_ = &placement_->block_lists[found->second[std::min(times, found->second.size() - 1)]];
}

std::optional<int64_t> PlacementCursor::take(int64_t bytes, StreamRole stream) {
  if (blocks_ == nullptr || next_ == blocks_->size()) return std::nullopt;
  const PoolPlacement::Block& block = (*blocks_)[next_];
  if (block.bytes != bytes || block.stream != stream) return std::nullopt;
  ++next_;
  return block.offset;
}

}  // namespace vitrine
