// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "nn/parallel/scheme.h"
#include "runtime/exec_context.h"

/// Private to nn/parallel.
namespace vitrine {

/// The sum of all leaves of a node of the tree, in one of the buffers of a device. A node is a range of leaf numbers
/// [a, b), which splits at a plus the largest power of two below b - a.
struct LeafNode {
  RowRange leaves;
  int buffer = 0;
};

/// What each device adds up in exact mode, for batches of one size: after each micro-batch it holds the largest nodes
/// whose leaves it has computed.
class LeafPlan {
 public:
  LeafPlan(const Split& split, int64_t samples, int accumulate, int world_size);

  int leaves() const { return leaves_; }
  /// The leaves with samples of a micro-batch (MicroBatch::index), on all devices.
  const std::vector<int>& leaves_of(int micro_batch) const { return numbers_[static_cast<size_t>(micro_batch)]; }
  /// The leaves of a micro-batch, with those that have no sample.
  RowRange range_of(int micro_batch) const { return ranges_[static_cast<size_t>(micro_batch)]; }
  /// What a rank holds after a micro-batch, -1: before the first one.
  const std::vector<LeafNode>& held(int rank, int micro_batch) const {
    const int position = micro_batch + 1;
    return held_[static_cast<size_t>(rank)][static_cast<size_t>(position)];
  }
  /// What a rank holds in the end.
  const std::vector<LeafNode>& roots(int rank) const { return held_[static_cast<size_t>(rank)].back(); }
  /// Buffers of a rank, and the most nodes that a rank holds in the end.
  int buffers(int rank) const;
  int most_roots() const;

 private:
  int leaves_;
  std::vector<std::vector<int>> numbers_;
  std::vector<RowRange> ranges_;
  std::vector<std::vector<std::vector<LeafNode>>> held_;  // [rank][micro-batch + 1]
};

/// Values of a node, to be added to others.
struct LeafPart {
  RowRange leaves;
  View values;
  bool scratch = true;  // may be overwritten
};

/// output = the sum of `parts` along the tree below `node`; nodes without a part are left out.
///   parts  at least one; ascending, disjoint nodes. output may be the values of a part.
void add_along_tree(ExecContext& ctx, const RowRange& node, std::span<const LeafPart> parts, const View& output);

}  // namespace vitrine
