// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/block_allocator.h"

#include <vector>

namespace vitrine {

std::optional<int64_t> BlockAllocator::allocate(int64_t bytes, Stream& stream) {
  const int64_t size = OffsetAllocator::aligned(bytes);
  const int64_t end = offsets_.peek(bytes) + size;
  if ((limits_sum_ ? allocated_bytes() + size : end) > limit_bytes()) return std::nullopt;
  grow_to(end);
  const int64_t offset = offsets_.allocate(bytes);
  order_after_last_use(offset, size, stream);
  return offset;
}

bool BlockAllocator::allocate_at(int64_t offset, int64_t bytes, Stream& stream) {
  const int64_t size = OffsetAllocator::aligned(bytes), end = offset + size;
  if (end > limit_bytes() || !offsets_.allocate_at(offset, bytes)) return false;
  try {
    grow_to(end);
  } catch (...) {
    offsets_.free(offset, bytes);
    throw;
  }
  order_after_last_use(offset, size, stream);
  return true;
}

void BlockAllocator::grow_to(int64_t end) {
  if (end <= slab_->size_bytes()) return;
  const int64_t chunks = (end + kGrowthBytes - 1) / kGrowthBytes * kGrowthBytes;
  slab_->grow(slab_->grows_again() ? std::min(capacity_bytes_, chunks) : capacity_bytes_);
}

void BlockAllocator::free(int64_t offset, int64_t bytes, Stream& stream) noexcept {
  offsets_.free(offset, bytes);
  int64_t begin = offset, end = offset + OffsetAllocator::aligned(bytes);
  if (begin == end) return;
  auto next = last_use_.lower_bound(begin);
  if (next != last_use_.end() && next->first == end && next->second.stream == &stream) {
    end = next->second.end;
    next = last_use_.erase(next);
  }
  if (next != last_use_.begin()) {
    const auto previous = std::prev(next);
    if (previous->second.end == begin && previous->second.stream == &stream) {
      begin = previous->first;
      last_use_.erase(previous);
    }
  }
  last_use_.emplace(begin, Range{end, &stream});
}

void BlockAllocator::order_after_last_use(int64_t offset, int64_t bytes, Stream& stream) {
  const int64_t end = offset + bytes;
  std::vector<Stream*> others;
  auto it = last_use_.upper_bound(offset);
  if (it != last_use_.begin()) --it;
  while (it != last_use_.end() && it->first < end) {
    const int64_t begin = it->first;
    const Range range = it->second;
    if (range.end <= offset) {
      ++it;
      continue;
    }
    if (range.stream != &stream && std::find(others.begin(), others.end(), range.stream) == others.end())
      others.push_back(range.stream);
    it = last_use_.erase(it);
    if (begin < offset) last_use_.emplace(begin, Range{offset, range.stream});
    if (range.end > end) it = last_use_.emplace(end, range).first;
  }
  for (Stream* other : others) {
    const auto event = other->make_event();
    other->record(*event);
    stream.wait(*event);
  }
}

void BlockAllocator::reserve(int64_t bytes) {
  slab_->grow(bytes);
  reserved_bytes_ = bytes;
}

}  // namespace vitrine
