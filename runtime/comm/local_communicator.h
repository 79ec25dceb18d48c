// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/local_group.h"

namespace vitrine {

/// One rank of an in-process group: checks and books a call when it is issued; the work happens in LocalGroup on the stream's worker.
/// On meta there is no group and no work, but the same checks and bytes.
///
/// A collective that a stream skips, being in error, aborts the group: peers would wait for it in vain. Wait spans name strings of the group, so
/// take them while a communicator of the group lives.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<comm::LocalGroup> group, int rank, int size);
  ~LocalCommunicator() override;
  LocalCommunicator(const LocalCommunicator&) = delete;
  LocalCommunicator& operator=(const LocalCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string description() const override;

  void all_reduce(ExecContext& ctx, View inout) override;
  void reduce(ExecContext& ctx, ConstView input, View output, int root) override;
  void broadcast(ExecContext& ctx, View inout, int root) override;
  void reduce_scatter(ExecContext& ctx, ConstView input, View output) override;
  void all_gather(ExecContext& ctx, ConstView input, View output) override;
  void scatter(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void gather(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) override;
  void barrier(ExecContext& ctx) override;
  void abort(const std::string& reason) override;

 private:
  void issue(ExecContext& ctx, comm::Call call, ConstView read, View write, int64_t bytes_moved);

  std::shared_ptr<comm::LocalGroup> group_;  // empty on meta
  int rank_;
  int size_;
  uint64_t issued_ = 0;
};

}  // namespace vitrine
