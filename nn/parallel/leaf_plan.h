// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "nn/parallel/scheme.h"
#include "runtime/comm/reduce_op.h"

/// Private to nn/parallel.
namespace vitrine {

/// The sum of all leaves of a node of the tree (runtime/leaf_tree.h), in one of the buffers of a device.
struct LeafNode {
  Subtree leaves;
  int buffer = 0;
};

/// What each device adds up in exact mode, for batches of one size: after each micro-batch it holds the largest nodes
/// whose leaves it has computed. At the end of the step the nodes of all devices are added.
///
/// With `to_owners` they are added after each micro-batch, by the owners of the gradients. A device then holds only
/// nodes of the current micro-batch, and an owner the largest nodes of the micro-batches so far.
class LeafPlan {
 public:
  LeafPlan(const Split& split, int64_t samples, int accumulate, int world_size, bool to_owners);

  int leaves() const { return leaves_; }
  /// The leaves with samples of a micro-batch (MicroBatch::index), on all devices.
  const std::vector<int>& leaves_of(int micro_batch) const { return numbers_[static_cast<size_t>(micro_batch)]; }
  /// The leaves of a micro-batch, with those that have no sample.
  RowRange range_of(int micro_batch) const { return ranges_[static_cast<size_t>(micro_batch)]; }
  /// What a rank holds after a micro-batch.
  const std::vector<LeafNode>& nodes_after(int rank, int micro_batch) const { return at(rank, micro_batch + 1); }
  /// What it holds of earlier micro-batches.
  const std::vector<LeafNode>& nodes_before(int rank, int micro_batch) const {
    return at(rank, to_owners_ ? 0 : micro_batch);
  }
  /// to_owners: what an owner holds after a micro-batch, -1: before the first one; and which nodes, the largest ones of
  /// the micro-batch, it adds to that.
  const std::vector<LeafNode>& owned(int micro_batch) const { return at(world_size_, micro_batch + 1); }
  const std::vector<Subtree>& arriving(int micro_batch) const { return arriving_[static_cast<size_t>(micro_batch)]; }
  /// What the ranks send after a micro-batch, ascending: without to_owners after the last one only.
  const std::vector<Contribution>& contributions(int micro_batch) const {
    return contributions_[static_cast<size_t>(micro_batch)];
  }
  /// For nodes of whole gradients; to_owners: of an owner's shard.
  int buffers(int rank) const;

 private:
  const std::vector<LeafNode>& at(int rank, int position) const {
    return nodes_[static_cast<size_t>(rank)][static_cast<size_t>(position)];
  }
  /// Of the micro-batch that was planned last.
  void plan_contributions();

  int leaves_, world_size_;
  bool to_owners_;
  std::vector<std::vector<int>> numbers_;
  std::vector<RowRange> ranges_;
  std::vector<std::vector<std::vector<LeafNode>>> nodes_;  // [rank, or world size: an owner][micro-batch + 1]
  std::vector<std::vector<Subtree>> arriving_;             // [micro-batch], to_owners
  std::vector<std::vector<Contribution>> contributions_;   // [micro-batch]
};

/// Whether a node has all leaves of another one.
inline bool contains(const Subtree& node, const Subtree& other) {
  return node.begin <= other.begin && other.end <= node.end;
}

}  // namespace vitrine
