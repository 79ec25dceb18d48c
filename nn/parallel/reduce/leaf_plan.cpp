// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/leaf_plan.h"

#include <algorithm>
#include <bit>

#include "kernels/elementwise.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

int64_t split_at(const RowRange& node) {
  return node.begin + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(node.size() - 1)));
}

bool contains(const RowRange& node, const RowRange& other) {
  return node.begin <= other.begin && other.end <= node.end;
}

/// Appends the largest nodes below `node` whose leaves with samples are all held.
void cover(const RowRange& node, const std::vector<bool>& held, const std::vector<bool>& exists,
           std::vector<RowRange>& nodes) {
  bool all = true, any = false;
  for (int64_t i = node.begin; i < node.end; ++i) {
    const auto leaf = static_cast<size_t>(i);
    all = all && (held[leaf] || !exists[leaf]);
    any = any || held[leaf];
  }
  if (!any) return;
  if (all) return nodes.push_back(node);
  cover({node.begin, split_at(node)}, held, exists, nodes);
  cover({split_at(node), node.end}, held, exists, nodes);
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
      std::vector<RowRange> nodes;
      cover({0, leaves_}, computed[rank], exists, nodes);
      held_[rank].push_back(place(nodes, held_[rank].back()));
    }
  }
}

int LeafPlan::buffers(int rank) const {
  int most = 0;
  for (const auto& nodes : held_[static_cast<size_t>(rank)]) {
    for (const LeafNode& node : nodes) most = std::max(most, node.buffer + 1);
  }
  return most;
}

int LeafPlan::most_roots() const {
  size_t most = 0;
  for (const auto& held : held_) most = std::max(most, held.back().size());
  return static_cast<int>(most);
}

namespace {

/// The sum of `parts`, in `output` if that is given and there is something to add, else in one of them.
LeafPart sum_below(ExecContext& ctx, const RowRange& node, std::span<const LeafPart> parts, const View& output) {
  if (parts.size() == 1) return parts.front();
  const int64_t middle = split_at(node);
  const auto right =
      std::find_if(parts.begin(), parts.end(), [&](const LeafPart& part) { return part.leaves.begin >= middle; });
  const auto left_count = static_cast<size_t>(right - parts.begin());
  const std::span<const LeafPart> left_parts = parts.first(left_count), right_parts = parts.subspan(left_count);
  if (right_parts.empty()) return sum_below(ctx, {node.begin, middle}, left_parts, output);
  if (left_parts.empty()) return sum_below(ctx, {middle, node.end}, right_parts, output);
  const LeafPart a = sum_below(ctx, {node.begin, middle}, left_parts, {});
  const LeafPart b = sum_below(ctx, {middle, node.end}, right_parts, {});
  VITRINE_ASSERT(output || a.scratch || b.scratch, "a sum within a tree has memory");
  const View sum = output ? output : a.scratch ? a.values : b.values;
  add(ctx, a.values, b.values, sum);
  return {node, sum};
}

}  // namespace

void add_along_tree(ExecContext& ctx, const RowRange& node, std::span<const LeafPart> parts, const View& output) {
  const LeafPart sum = sum_below(ctx, node, parts, output);
  if (sum.values.data != output.data) copy(ctx, sum.values, output);
}

}  // namespace vitrine
