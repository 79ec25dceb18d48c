// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

namespace vitrine {

/// Assigns offsets in [0, infinity) by best fit; among equal holes, the highest. The same calls give the same offsets
/// on every machine. Rounds sizes up to kAlignment. Knows no memory: BlockAllocator maps the offsets to a slab. Not
/// thread-safe.
class OffsetAllocator {
 public:
  static constexpr int64_t kAlignment = 256;
  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  /// Allocates aligned(bytes) bytes in the smallest hole that fits (among several the highest, so that the lower one
  /// may grow), or at the end of the extent. Returns the offset.
  int64_t allocate(int64_t bytes);
  /// Returns the offset that allocate(bytes) would return, without allocating.
  int64_t peek(int64_t bytes) const;
  /// Allocates aligned(bytes) bytes at `offset`, a multiple of kAlignment. Returns false, and changes nothing, if a
  /// part of that range is in use.
  bool allocate_at(int64_t offset, int64_t bytes);
  /// Releases a block. requires offset and bytes as allocated (asserted)
  void free(int64_t offset, int64_t bytes);
  /// End of the highest block in use.
  int64_t extent() const { return extent_; }
  int64_t allocated_bytes() const { return allocated_; }
  /// Bytes of the largest hole below the extent.
  int64_t largest_hole() const;

 private:
  std::map<int64_t, int64_t> holes_;  // offset -> bytes, disjoint, never adjacent, all below extent_
  int64_t extent_ = 0;
  int64_t allocated_ = 0;
};

}  // namespace vitrine
