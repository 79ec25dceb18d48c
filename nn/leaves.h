// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/row_range.h>

namespace vitrine {

/// A fixed range of samples of the global batch that is always computed with the same shapes, wherever it runs. Results
/// of leaves are added along one binary tree over their numbers, so the sum has the same bits on any devices.
struct Leaf {
  RowRange rows;   // in the slice that the layer gets
  int number = 0;  // among the leaves of the step
  int group = 0;   // of leaves that share batch statistics, among those of the micro-batch
};

/// What layers add up over leaves. The engine implements it.
class LeafSums {
 public:
  virtual ~LeafSums() = default;
  /// sums (groups, n) f32 = for each group of leaves of the micro-batch the sum over its leaves on all devices.
  ///   by_leaf (own leaves, n) f32; empty on a device without leaves
  /// A collective: every device that takes part in the pass makes the same calls in the same order.
  virtual void sum_groups(ExecContext& ctx, const View& by_leaf, const View& sums) = 0;
  /// Adds what the device's leaves contribute to a gradient.
  ///   by_leaf (own leaves, n) f32, used as scratch      grad (n): the parameter's view of the flat gradients
  virtual void add_gradient(ExecContext& ctx, const View& by_leaf, const View& grad) = 0;
};

/// The leaves of a pass in exact mode.
struct Leaves {
  std::vector<Leaf> own;               // of this device, ascending, none of them empty
  std::vector<int64_t> group_samples;  // of each group of the micro-batch, on all devices
  LeafSums* sums = nullptr;            // in training
};

}  // namespace vitrine
