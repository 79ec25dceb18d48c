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
  void scatter(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void gather(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void all_to_all(ExecContext& ctx, ConstView input, View output) override;
  void send_receive(ExecContext& ctx, ConstView input, int to, View output, int from) override;
  void barrier(ExecContext& ctx) override;
  /// Like reduce() of 16 bits, but with an unrounded result in f32.
  void reduce_unrounded(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op);

 protected:
  /// Checks the arguments of all_reduce_and_square(), and queues it.
  void issue_all_reduce_and_square(ExecContext& ctx, View inout, int64_t squared, View squares);
  /// ordinal: of its device in this process's group, if there are other processes; books_bytes: moved bytes count
  /// towards the context's open span
  CheckedCommunicator(int rank, int size, int ordinal, bool books_bytes = true)
      : rank_(rank), size_(size), ordinal_(ordinal), books_bytes_(books_bytes) {}
  /// Dispatches the operation on the context's stream. `call` has been checked.
  virtual void queue(ExecContext& ctx, const OpInfo& info, comm::Call call) = 0;

 private:
  comm::Reduction reduction(ReduceOp op) const { return {op, op == ReduceOp::average ? size_ : 1}; }
  void issue_reduce(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op,
                    std::optional<DType> sum_dtype);
  void issue(ExecContext& ctx, comm::Call call, ConstView read, View write, int64_t bytes_moved,
             View also_written = {});

  int rank_;
  int size_;
  int ordinal_;
  bool books_bytes_;
};

}  // namespace vitrine
