// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/leaf_plan.h"

#include <algorithm>

namespace vitrine {
namespace {

bool contains(const RowRange& node, const RowRange& other) {
  return node.begin <= other.begin && other.end <= node.end;
}

/// Gives each node a buffer: that of the first node in it that was held before, else one that was not in use.
std::vector<LeafNode> place(const std::vector<RowRange>& nodes, const std::vector<LeafNode>& before) {
  std::vector<LeafNode> placed;
  const auto in_use = [&](int buffer) {
    const auto has_it = [&](const LeafNode& node) { return node.buffer == buffer; };
    return std::any_of(before.begin(), before.end(), has_it) || std::any_of(placed.begin(), placed.end(), has_it);
  };
  for (const RowRange& node : nodes) {
    const auto inside =
        std::find_if(before.begin(), before.end(), [&](const LeafNode& other) { return contains(node, other.leaves); });
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

LeafPlan::LeafPlan(const Split& split, int64_t samples, int accumulate, int world_size) : leaves_(split.leaves) {
  const BatchPlan batch = plan_batch(split, samples, accumulate, world_size);
  std::vector<bool> exists;
  for (int i = 0; i < leaves_; ++i)
    exists.push_back(leaf_begin(samples, leaves_, i) < leaf_begin(samples, leaves_, i + 1));
  held_.resize(static_cast<size_t>(world_size));
  std::vector<std::vector<bool>> computed(held_.size(), std::vector<bool>(exists.size()));
  for (auto& held : held_) held.emplace_back();
  for (int k = 0; k < batch.micro_batches(); ++k) {
    if (batch.micro_batch_size(k) == 0) continue;
    const std::vector<RowRange>& of_rank = batch.leaves[static_cast<size_t>(k)];
    ranges_.push_back({of_rank.front().begin, of_rank.back().end});
    auto& numbers = numbers_.emplace_back();
    for (int64_t i = ranges_.back().begin; i < ranges_.back().end; ++i) {
      if (exists[static_cast<size_t>(i)]) numbers.push_back(static_cast<int>(i));
    }
    for (size_t rank = 0; rank < held_.size(); ++rank) {
      for (int64_t i = of_rank[rank].begin; i < of_rank[rank].end; ++i)
        computed[rank][static_cast<size_t>(i)] = exists[static_cast<size_t>(i)];
      held_[rank].push_back(place(aligned_subtrees(computed[rank], exists), held_[rank].back()));
    }
  }
  for (size_t rank = 0; rank < held_.size(); ++rank) {
    for (const LeafNode& node : held_[rank].back()) contributions_.push_back({node.leaves, static_cast<int>(rank)});
  }
  std::sort(contributions_.begin(), contributions_.end(),
            [](const Contribution& a, const Contribution& b) { return a.node.begin < b.node.begin; });
}

int LeafPlan::buffers(int rank) const {
  int most = 0;
  for (const auto& nodes : held_[static_cast<size_t>(rank)]) {
    for (const LeafNode& node : nodes) most = std::max(most, node.buffer + 1);
  }
  return most;
}

}  // namespace vitrine
