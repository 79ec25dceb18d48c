// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The fixed binary tree along which an exact run adds the contributions of its leaves, so that sums have the same bits
/// on any number of devices. A node over the leaves [a, b) splits at a plus the largest power of two below b - a; its
/// sum is that of the left part plus that of the right. A part without contributions is left out, not added as zero.
namespace vitrine {

/// Leaves [begin, end): a node of the tree, and what was added there. A leaf is a range of length 1.
struct Subtree {
  int64_t begin = 0, end = 0;
  bool operator==(const Subtree&) const = default;
};

/// The largest nodes of the tree over [0, leaf_count) that cover the leaves [first, last), ascending: what a device
/// with these leaves can add without those of other devices.
/// throws  ConfigError unless 0 <= first <= last <= leaf_count
std::vector<Subtree> aligned_subtrees(int64_t first, int64_t last, int64_t leaf_count);

/// In which order the sums of ascending nodes are added: after taking the i-th, the two latest of the partial sums are
/// added folds()[i] times.
class TreeOrder {
 public:
  static constexpr size_t kMostNodes = 256;
  static constexpr int64_t kMostLeaves = int64_t{1} << 16;
  static constexpr int kMostPartials = 17;  // at once: one for each height of a node

  ///   nodes  1 to kMostNodes nodes of one tree over at most kMostLeaves, ascending and apart. Leaves between them are
  ///          left out.
  /// throws  ConfigError naming the node that does not fit
  explicit TreeOrder(std::span<const Subtree> nodes);
  std::span<const uint8_t> folds() const { return folds_; }

 private:
  std::vector<uint8_t> folds_;
};

/// Adds a number for each node, such as a loss, along the tree, rounding each sum to T.
/// requires  as many values as nodes      throws  as TreeOrder
template <class T>
T tree_sum(std::span<const Subtree> nodes, std::span<const T> values) {
  const TreeOrder order(nodes);
  std::vector<T> partials;
  for (size_t i = 0; i < nodes.size(); ++i) {
    partials.push_back(values[i]);
    for (int fold = 0; fold < order.folds()[i]; ++fold) {
      const T right = partials.back();
      partials.pop_back();
      partials.back() = partials.back() + right;
    }
  }
  return partials.front();
}

}  // namespace vitrine
