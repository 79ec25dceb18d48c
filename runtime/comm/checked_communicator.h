// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "runtime/comm/call.h"
#include "runtime/comm/communicator.h"

namespace vitrine {

/// Common part of all communicators: checks the arguments when a collective is issued, and counts the bytes. queue()
/// carries it out.
class CheckedCommunicator : public Communicator {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  using Communicator::all_reduce;
  using Communicator::broadcast;
  using Communicator::reduce;
  using Communicator::reduce_scatter;
  void all_reduce(ExecContext& ctx, ConstView input, View output, ReduceOp op) override;
  void reduce(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op) override;
  void broadcast(ExecContext& ctx, ConstView input, View output, int root) override;
  void reduce_scatter(ExecContext& ctx, ConstView input, View output, ReduceOp op) override;
  void all_gather(ExecContext& ctx, ConstView input, View output) override;
  void tree_all_reduce(ExecContext& ctx, std::span<const Contribution> contributions, std::span<const ConstView> inputs,
                       View output) override;
  void tree_reduce_scatter(ExecContext& ctx, std::span<const Contribution> contributions,
                           std::span<const ConstView> inputs, View output) override;
  void scatter(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void gather(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void all_to_all(ExecContext& ctx, ConstView input, View output) override;
  void send_receive(ExecContext& ctx, ConstView input, int to, View output, int from) override;
  void barrier(ExecContext& ctx) override;
  /// tree_all_reduce() of CPU devices to the root alone; elsewhere output only tells shape and dtype.
  void tree_reduce(ExecContext& ctx, std::span<const Contribution> contributions, std::span<const ConstView> inputs,
                   View output, int root);
  /// Like reduce() of 16 bits, but with an unrounded result in f32.
  void reduce_unrounded(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op);

 protected:
  /// Checks the arguments of all_reduce_and_square(), and queues it.
  void issue_all_reduce_and_square(ExecContext& ctx, View inout, int64_t squared, View squares);
  /// ordinal: of its device in this process's group, if there are other processes; books_bytes: moved bytes count
  /// towards the context's open span
  CheckedCommunicator(int rank, int size, int ordinal, bool books_bytes = true)
      : rank_(rank), size_(size), ordinal_(ordinal), books_bytes_(books_bytes) {}
  /// Whether sums along the tree need memory for the other ranks' contributions to this rank's shard, so for GPUs, and
  /// for meta devices that stand for them.
  virtual bool receives_contributions() const { return false; }
  /// Dispatches the operation on the context's stream. `call` has been checked.
  virtual void queue(ExecContext& ctx, const OpInfo& info, comm::Call call) = 0;

 private:
  comm::Combination combination(ReduceOp op) const { return {op, op == ReduceOp::average ? size_ : 1}; }
  void issue_reduce(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op,
                    std::optional<DType> sum_dtype);
  ///   whole  shape of the inputs
  void issue_tree_sum(ExecContext& ctx, comm::Operation operation, std::span<const Contribution> contributions,
                      std::span<const ConstView> inputs, const Shape& whole, View output, int root);
  void issue(ExecContext& ctx, comm::Call call, ConstView read, View write, int64_t bytes_moved, View also_written = {},
             std::span<const ConstView> more_reads = {});

  int rank_;
  int size_;
  int ordinal_;
  bool books_bytes_;
};

}  // namespace vitrine
