// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/leaf_tree.h>

namespace vitrine {

/// What a rank contributes to Communicator::tree_all_reduce(): its sum at a node of the tree over leaves.
struct Contribution {
  Subtree node;
  int rank = 0;
  bool operator==(const Contribution&) const = default;
};

}  // namespace vitrine
