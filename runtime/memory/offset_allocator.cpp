// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/offset_allocator.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "runtime/error.h"

namespace vitrine {

int64_t OffsetAllocator::peek(int64_t bytes) const {
  const int64_t size = aligned(bytes);
  int64_t best = extent_;
  int64_t best_size = std::numeric_limits<int64_t>::max();
  for (const auto& [offset, hole] : holes_) {
    if (hole >= size && hole <= best_size) {
      best = offset;
      best_size = hole;
    }
  }
  return best;
}

int64_t OffsetAllocator::largest_hole() const {
  int64_t largest = 0;
  for (const auto& [offset, hole] : holes_) largest = std::max(largest, hole);
  return largest;
}

int64_t OffsetAllocator::allocate(int64_t bytes) {
  const int64_t size = aligned(bytes);
  const int64_t offset = peek(bytes);
  allocated_ += size;
  if (offset == extent_) {
    extent_ += size;
    return offset;
  }
  const auto hole = holes_.find(offset);
  const int64_t rest = hole->second - size;
  holes_.erase(hole);
  if (rest > 0) holes_.emplace(offset + size, rest);
  return offset;
}

bool OffsetAllocator::allocate_at(int64_t offset, int64_t bytes) {
  const int64_t size = aligned(bytes), end = offset + size;
  if (size == 0) return true;
  if (offset >= extent_) {
    if (offset > extent_) holes_.emplace(extent_, offset - extent_);
    extent_ = end;
  } else {
    auto hole = holes_.upper_bound(offset);
    if (hole == holes_.begin()) return false;
    --hole;
    const auto [begin, hole_bytes] = *hole;
    const int64_t rest = begin + hole_bytes - end;
    if (rest < 0) return false;
    holes_.erase(hole);
    if (begin < offset) holes_.emplace(begin, offset - begin);
    if (rest > 0) holes_.emplace(end, rest);
  }
  allocated_ += size;
  return true;
}

void OffsetAllocator::free(int64_t offset, int64_t bytes) {
  int64_t size = aligned(bytes);
  if (size == 0) return;  // empty blocks take no place and may share an offset
  VITRINE_ASSERT(offset >= 0 && offset + size <= extent_, "a block lies within the extent");
  allocated_ -= size;
  auto next = holes_.lower_bound(offset);
  VITRINE_ASSERT(next == holes_.end() || offset + size <= next->first, "a block is freed once");
  if (next != holes_.end() && offset + size == next->first) {
    size += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto previous = std::prev(next);
    VITRINE_ASSERT(previous->first + previous->second <= offset, "a block is freed once");
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      holes_.erase(previous);
    }
  }
  if (offset + size == extent_) {
    extent_ = offset;
  } else {
    holes_.emplace(offset, size);
  }
}

}  // namespace vitrine
