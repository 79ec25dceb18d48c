// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <vitrine/runtime/leaf_tree.h>

namespace vitrine {

/// How a reduction combines the ranks' elements, in rank order. `average` is the sum divided by the number of ranks
/// (i32: rounded towards zero). `min` and `max` of a NaN are NaN, except on NCCL, which ignores NaNs. Sums of i32 wrap
/// around.
enum class ReduceOp : uint8_t { sum, min, max, average };
/// "sum", "min", "max", "avg": the names of nccl-tests.
const char* reduce_op_name(ReduceOp op);

namespace comm {

/// An operation and its divisor; an average is divided when the last partial sums are combined.
struct Combination {
  ReduceOp op = ReduceOp::sum;
  int divisor = 1;  // 1 unless op is average
  bool operator==(const Combination&) const = default;
};

}  // namespace comm

/// What a rank contributes to Communicator::tree_all_reduce(): its sum at a node of the tree over leaves.
struct Contribution {
  Subtree node;
  int rank = 0;
  bool operator==(const Contribution&) const = default;
};

}  // namespace vitrine
