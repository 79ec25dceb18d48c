// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "runtime/comm/capabilities.h"
#include "runtime/comm/checked_communicator.h"
#include "runtime/comm/local_group.h"

namespace vitrine {

/// One rank of an in-process group of CPU devices. LocalGroup does the work on the stream's worker; on meta there is no
/// group and no work.
///
/// A collective that is skipped because its stream is in error aborts the group, because peers would wait forever. Wait
/// spans refer to strings of the group, so take the spans while a communicator of the group exists.
class LocalCommunicator final : public CheckedCommunicator, public SquaringCommunicator {
 public:
  /// books_bytes: see CheckedCommunicator; plans_gpus: meta devices that stand for GPUs
  LocalCommunicator(std::shared_ptr<comm::LocalGroup> group, int rank, int size, bool books_bytes = true,
                    bool plans_gpus = false);
  ~LocalCommunicator() override;
  LocalCommunicator(const LocalCommunicator&) = delete;
  LocalCommunicator& operator=(const LocalCommunicator&) = delete;

  std::string description() const override;
  void all_reduce_and_square(ExecContext& ctx, View inout, int64_t squared, View squares) override {
    issue_all_reduce_and_square(ctx, inout, squared, squares);
  }
  void abort(const Reason& reason) override;

 private:
  bool receives_contributions() const override { return plans_gpus_; }
  void queue(ExecContext& ctx, const OpInfo& info, comm::Call call) override;

  std::shared_ptr<comm::LocalGroup> group_;  // empty on meta
  bool plans_gpus_;
  uint64_t issued_ = 0;
};

}  // namespace vitrine
