// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <vitrine/runtime/row_range.h>

/// The fixed binary tree along which an exact run adds the contributions of its leaves, so that sums have the same bits
/// on any number of devices. A node over the leaves [a, b) splits at a plus the largest power of two below b - a; its
/// sum is that of the left part plus that of the right. A part without contributions is left out, not added as zero.
namespace vitrine {

/// A node of the tree, as the range of its leaves. A leaf is a range of length 1.
using Subtree = RowRange;

/// The largest nodes of the tree whose leaves are all held, ascending: what a device with these leaves can add without
/// those of other devices. Leaves without samples do not exist; a node may contain them.
///   held, exists  for each leaf
std::vector<Subtree> aligned_subtrees(const std::vector<bool>& held, const std::vector<bool>& exists);

/// In which order the sums of ascending nodes are added: after taking the i-th, the two latest of the partial sums are
/// added folds()[i] times.
class TreeOrder {
 public:
  static constexpr int kMostNodes = 256;
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

}  // namespace vitrine
