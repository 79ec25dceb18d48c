// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vitrine {

/// A block of memory with a known lifetime: in use from event `first` to event `end`, exclusive.
struct BlockLifetime {
  static constexpr int64_t kAnywhere = -1;

  int64_t bytes = 0;  // > 0
  int32_t first = 0, end = 0;
  int32_t group = 0;           // blocks of different groups never share an address, even at different times
  int64_t offset = kAnywhere;  // where the block lies already, or kAnywhere

  bool operator==(const BlockLifetime&) const = default;
};

/// An offset for each block, and the end of the highest one.
struct Placement {
  std::vector<int64_t> offsets;
  int64_t height = 0;
};

/// Returns the largest sum of the bytes in use at the same time: no placement is lower.
int64_t largest_sum(std::span<const BlockLifetime> blocks);

/// Returns a height that no placement is below: largest_sum(), or the sum of what each group needs by itself.
int64_t height_bound(std::span<const BlockLifetime> blocks);

/// Assigns offsets so that blocks overlap in memory only if they belong to one group and their lifetimes do not overlap
/// (offline dynamic storage allocation, which is NP-hard). Tries several orders of the blocks, each by lowest and by
/// best fit, then improves the best result by a bounded search that moves blocks which stand in the way of the highest
/// one earlier (hill climbing, as in Arm's Vela compiler).
///   blocks  those with an offset do not overlap; every offset is a sum of the blocks' sizes, so their alignment is
///           kept
///   enough  a height that is low enough: the search ends there
/// determinism  yes, on every machine      time  at most about kSearchSteps comparisons of blocks, beyond the first
///              attempt
Placement place_blocks(std::span<const BlockLifetime> blocks, int64_t enough);

inline constexpr int64_t kSearchSteps = int64_t{1} << 21;

}  // namespace vitrine
