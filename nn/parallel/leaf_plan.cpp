// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/leaf_plan.h"

#include <algorithm>

namespace vitrine {
namespace {

/// Gives each node a buffer: that of the first node in it that was held before, else one that is not in use when the
/// nodes before it are added.
std::vector<LeafNode> place(const std::vector<RowRange>& nodes, const std::vector<LeafNode>& before) {
  std::vector<LeafNode> placed;
  const auto in_use = [&](int buffer) {
    const auto has_it = [&](const LeafNode& node) { return node.buffer == buffer; };
    const auto waits = [&](const LeafNode& node) {
      const auto is_added = [&](const LeafNode& sum) { return contains(sum.leaves, node.leaves); };
      return has_it(node) && std::ranges::none_of(placed, is_added);
    };
    return std::ranges::any_of(before, waits) || std::ranges::any_of(placed, has_it);
  };
  for (const RowRange& node : nodes) {
    const auto inside =
        std::ranges::find_if(before, [&](const LeafNode& other) { return contains(node, other.leaves); });
    int buffer = 0;
    if (inside != before.end()) {
      buffer = inside->buffer;
    } else {
      while (in_use(buffer)) ++buffer;
    }
    placed.push_back({node, buffer});
  }
  return placed;
}

}  // namespace

LeafPlan::LeafPlan(const Split& split, int64_t samples, int accumulate, int world_size, bool to_owners)
    : leaves_(split.leaves), world_size_(world_size), to_owners_(to_owners) {
  const BatchPlan batch = plan_batch(split, samples, accumulate, world_size);
  std::vector<bool> exists;
  for (int i = 0; i < leaves_; ++i)
    exists.push_back(leaf_begin(samples, leaves_, i) < leaf_begin(samples, leaves_, i + 1));
  const auto ranks = static_cast<size_t>(world_size);
  nodes_.resize(ranks + 1, std::vector<std::vector<LeafNode>>(1));
  std::vector<std::vector<bool>> computed(nodes_.size(), std::vector<bool>(exists.size()));
  for (int k = 0; k < batch.micro_batches(); ++k) {
    if (batch.micro_batch_size(k) == 0) continue;
    const std::vector<RowRange>& of_rank = batch.leaves[static_cast<size_t>(k)];
    ranges_.push_back({of_rank.front().begin, of_rank.back().end});
    auto& numbers = numbers_.emplace_back();
    for (int64_t i = ranges_.back().begin; i < ranges_.back().end; ++i) {
      if (exists[static_cast<size_t>(i)]) numbers.push_back(static_cast<int>(i));
    }
    std::vector<bool> arrives(exists.size());
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (to_owners) computed[rank].assign(exists.size(), false);
      for (int64_t i = of_rank[rank].begin; i < of_rank[rank].end; ++i) {
        const auto leaf = static_cast<size_t>(i);
        computed[rank][leaf] = computed[ranks][leaf] = arrives[leaf] = exists[leaf];
      }
      nodes_[rank].push_back(
          place(aligned_subtrees(computed[rank], exists), nodes_[rank][to_owners ? 0 : nodes_[rank].size() - 1]));
    }
    if (to_owners) {
      nodes_[ranks].push_back(place(aligned_subtrees(computed[ranks], exists), nodes_[ranks].back()));
      arriving_.push_back(aligned_subtrees(arrives, exists));
    }
    plan_contributions();
  }
}

void LeafPlan::plan_contributions() {
  if (!to_owners_ && !contributions_.empty()) contributions_.back().clear();
  std::vector<Contribution>& sent = contributions_.emplace_back();
  for (int rank = 0; rank < world_size_; ++rank) {
    for (const LeafNode& node : nodes_[static_cast<size_t>(rank)].back()) sent.push_back({node.leaves, rank});
  }
  std::ranges::sort(sent, [](const Contribution& a, const Contribution& b) { return a.node.begin < b.node.begin; });
}

int LeafPlan::buffers(int rank) const {
  int most = 0;
  for (const auto& nodes : nodes_[static_cast<size_t>(to_owners_ ? world_size_ : rank)]) {
    for (const LeafNode& node : nodes) most = std::max(most, node.buffer + 1);
  }
  return most;
}

}  // namespace vitrine
