// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "nn/parallel/scheme.h"
#include "runtime/comm/contribution.h"

/// Private to nn/parallel.
namespace vitrine {

/// The sum of all leaves of a node of the tree (runtime/leaf_tree.h), in one of the buffers of a device.
struct LeafNode {
  Subtree leaves;
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
  /// The same of all ranks, ascending.
  const std::vector<Contribution>& contributions() const { return contributions_; }
  /// Buffers of a rank.
  int buffers(int rank) const;

 private:
  int leaves_;
  std::vector<std::vector<int>> numbers_;
  std::vector<RowRange> ranges_;
  std::vector<std::vector<std::vector<LeafNode>>> held_;  // [rank][micro-batch + 1]
  std::vector<Contribution> contributions_;
};

}  // namespace vitrine
