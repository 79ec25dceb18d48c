// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/comm/call.h"
#include "runtime/comm/communicator.h"

namespace vitrine {

/// What all communicators do when a collective is issued: they check the arguments and count the bytes. How it is carried out is queue()'s.
class CheckedCommunicator : public Communicator {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  using Communicator::all_reduce;
  using Communicator::broadcast;
  void all_reduce(ExecContext& ctx, ConstView input, View output) override;
  void reduce(ExecContext& ctx, ConstView input, View output, int root) override;
  void broadcast(ExecContext& ctx, ConstView input, View output, int root) override;
  void reduce_scatter(ExecContext& ctx, ConstView input, View output) override;
  void all_gather(ExecContext& ctx, ConstView input, View output) override;
  void scatter(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void gather(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void barrier(ExecContext& ctx) override;
  /// reduce() of 16 bits whose sum, the output (f32), is not rounded.
  void reduce_unrounded(ExecContext& ctx, ConstView input, View output, int root);

 protected:
  /// ordinal: of its device within the group of this process, where there are others; books_bytes: what is moved counts in the context's open span
  CheckedCommunicator(int rank, int size, int ordinal, bool books_bytes = true)
      : rank_(rank), size_(size), ordinal_(ordinal), books_bytes_(books_bytes) {}
  /// Dispatches the operation on the context's stream: everything in `call` fits.
  virtual void queue(ExecContext& ctx, const OpInfo& info, comm::Call call) = 0;

 private:
  void issue(ExecContext& ctx, comm::Call call, ConstView read, View write, int64_t bytes_moved);

  int rank_;
  int size_;
  int ordinal_;
  bool books_bytes_;
};

}  // namespace vitrine
