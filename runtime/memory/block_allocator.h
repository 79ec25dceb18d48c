// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "runtime/memory/offset_allocator.h"
#include "runtime/memory/slab.h"
#include "runtime/stream.h"

namespace vitrine {

/// Places blocks in a slab and orders the streams that use the same range in turn. Pool wraps it and adds names,
/// statistics, history and errors.
class BlockAllocator {
 public:
  BlockAllocator(std::unique_ptr<Slab> slab, int64_t capacity_bytes)
      : slab_(std::move(slab)), capacity_bytes_(capacity_bytes) {}

  /// Returns the offset of OffsetAllocator::aligned(bytes) bytes, or nothing if the limit leaves no room. Makes
  /// `stream` wait for the streams that used the range before. Grows the slab if necessary; throws what Slab::grow()
  /// throws.
  std::optional<int64_t> allocate(int64_t bytes, Stream& stream);
  /// The same at a given offset. Returns false if a part of that range is in use or beyond the limit.
  bool allocate_at(int64_t offset, int64_t bytes, Stream& stream);
  /// requires  offset and bytes as allocated      stream  the last one to use the block
  void free(int64_t offset, int64_t bytes, Stream& stream) noexcept;

  /// Grows the slab to `bytes` and makes that the limit. requires  no block is allocated
  void reserve(int64_t bytes);
  bool is_reserved() const { return reserved_bytes_.has_value(); }
  /// The reserved size, or the current size of a slab that still grows.
  int64_t reserved_bytes() const { return reserved_bytes_.value_or(slab_->size_bytes()); }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  /// From now on the limit applies to the sum of the blocks, not to their extent. For meta devices, whose slabs have no
  /// end.
  void limit_sum() { limits_sum_ = true; }
  int64_t limit_bytes() const { return reserved_bytes_.value_or(capacity_bytes_); }
  /// Size of the largest block that still fits.
  int64_t largest_free_bytes() const {
    return limits_sum_ ? limit_bytes() - allocated_bytes()
                       : std::max(offsets_.largest_hole(), limit_bytes() - offsets_.extent());
  }
  int64_t allocated_bytes() const { return offsets_.allocated_bytes(); }
  int64_t extent() const { return offsets_.extent(); }
  void* address(int64_t offset) const { return static_cast<char*>(slab_->base()) + offset; }

 private:
  static constexpr int64_t kGrowthBytes = int64_t{32} << 20;
  /// A free range and the stream that used it last.
  struct Range {
    int64_t end;
    Stream* stream;
  };
  void grow_to(int64_t end);
  void order_after_last_use(int64_t offset, int64_t bytes, Stream& stream);

  std::unique_ptr<Slab> slab_;
  int64_t capacity_bytes_;
  std::optional<int64_t> reserved_bytes_;
  bool limits_sum_ = false;
  OffsetAllocator offsets_;
  std::map<int64_t, Range> last_use_;  // offset -> range; disjoint
};

}  // namespace vitrine
