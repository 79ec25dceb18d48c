// SPDX-License-Identifier: Apache-2.0
#include "runtime/leaf_tree.h"

#include <bit>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

/// Every tree is the part below its number of leaves of one unbounded tree, in which a node of height h has 2^h leaves
/// and starts at a multiple of 2^h.
int height_of(const Subtree& node) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(node.end - node.begin - 1)));
}

/// Height of the lowest node that has both leaves.
int height_above(int64_t leaf, int64_t other) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(leaf ^ other)));
}

std::string leaves_text(const Subtree& node) { return fmt::format("[{}, {})", node.begin, node.end); }

/// Only the last node of a tree may have another number of leaves than a power of two.
void require_node(const Subtree& node, bool last) {
  const bool range = node.begin >= 0 && node.begin < node.end && node.end <= TreeOrder::kMostLeaves;
  if (range && node.begin % (int64_t{1} << height_of(node)) == 0 &&
      (last || std::has_single_bit(static_cast<uint64_t>(node.end - node.begin))))
    return;
  throw ConfigError(fmt::format(
      "the leaves {} are no node of a tree over at most {} leaves; add the subtrees of aligned_subtrees() instead",
      leaves_text(node), TreeOrder::kMostLeaves));
}

void add_subtrees(const Subtree& node, const std::vector<bool>& held, const std::vector<bool>& exists,
                  std::vector<Subtree>& subtrees) {
  bool all = true, any = false;
  for (int64_t i = node.begin; i < node.end; ++i) {
    const auto leaf = static_cast<size_t>(i);
    all = all && (held[leaf] || !exists[leaf]);
    any = any || held[leaf];
  }
  if (!any) return;
  if (all) return subtrees.push_back(node);
  const int64_t split = node.begin + (int64_t{1} << (height_of(node) - 1));
  add_subtrees({node.begin, split}, held, exists, subtrees);
  add_subtrees({split, node.end}, held, exists, subtrees);
}

}  // namespace

std::vector<Subtree> aligned_subtrees(const std::vector<bool>& held, const std::vector<bool>& exists) {
  std::vector<Subtree> subtrees;
  add_subtrees({0, static_cast<int64_t>(held.size())}, held, exists, subtrees);
  return subtrees;
}

TreeOrder::TreeOrder(std::span<const Subtree> nodes) {
  if (nodes.empty() || nodes.size() > size_t{kMostNodes}) {
    throw ConfigError(fmt::format("a sum along a tree has {} contributions, expected 1 to {}; use fewer leaves",
                                  nodes.size(), kMostNodes));
  }
  // Partial sums that wait for their right part, as the heights of the nodes that add them to it.
  std::vector<int> waiting;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool last = i + 1 == nodes.size();
    require_node(nodes[i], last);
    if (!last && nodes[i + 1].begin < nodes[i].end) {
      throw ConfigError(fmt::format("the nodes {} and {} of a tree over leaves overlap or descend; sort them by leaf",
                                    leaves_text(nodes[i]), leaves_text(nodes[i + 1])));
    }
    const int height = last ? kMostPartials + 1 : height_above(nodes[i].begin, nodes[i + 1].begin);
    uint8_t folds = 0;
    for (; !waiting.empty() && waiting.back() < height; waiting.pop_back()) ++folds;
    folds_.push_back(folds);
    if (!last) waiting.push_back(height);
  }
}

}  // namespace vitrine
