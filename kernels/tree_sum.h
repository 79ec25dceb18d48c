// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/leaf_tree.h>

namespace vitrine {

/// output = the inputs added along the tree over leaves (runtime/leaf_tree.h), in one pass. Sums of leaves that are
/// added again, here or by Communicator::tree_all_reduce, have the same bits as the sum of all leaves at once.
///   inputs  1 to TreeOrder::kMostNodes views of output's shape: the sum at each of the nodes, which ascend. With one,
///           it is copied.
/// dtypes  f32, f16 or bf16, all equal; adds in f32 and rounds every sum to the dtype      aliasing  output may be one
/// of the inputs, else does not overlap them      determinism  yes; the bits do not depend on threads, instruction set
/// or backend, except those of a NaN
/// throws  ShapeError, DtypeError, DeviceError, ConfigError (nodes)
void tree_sum(ExecContext& ctx, std::span<const Subtree> nodes, std::span<const ConstView> inputs, View output);

}  // namespace vitrine
