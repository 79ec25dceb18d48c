// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/local_communicator.h"

#include <utility>

#include <fmt/format.h>

namespace vitrine {
namespace {

using comm::Call;

/// A collective in a stream's queue.
class QueuedCollective {
 public:
  QueuedCollective(std::shared_ptr<comm::LocalGroup> group, int rank, uint64_t sequence, Call call, Stream& stream,
                   bool traced)
      : group_(std::move(group)),
        rank_(rank),
        traced_(traced),
        sequence_(sequence),
        call_(std::move(call)),
        stream_(&stream) {}
  QueuedCollective(QueuedCollective&&) = default;
  QueuedCollective& operator=(QueuedCollective&&) = delete;
  ~QueuedCollective() {
    if (group_) abort_peers();
  }

  void operator()() {
    const std::shared_ptr<comm::LocalGroup> group = std::move(group_);
    group->run(rank_, sequence_, call_, traced_ ? static_cast<CpuStream*>(stream_) : nullptr);
  }

 private:
  // Destroyed without having run: the stream was in error, or issuing the call failed.
  void abort_peers() noexcept {
    try {
      group_->abort(fmt::format(
          "{}: {} never took part, because an earlier operation of its stream failed; see that device's error",
          comm::operation_name(call_.operation), group_->rank_name(rank_)));
    } catch (...) {
      group_->abort("");  // no memory for the reason
    }
  }

  std::shared_ptr<comm::LocalGroup> group_;
  int rank_;
  bool traced_;
  uint64_t sequence_;
  Call call_;
  Stream* stream_;
};

}  // namespace

LocalCommunicator::LocalCommunicator(std::shared_ptr<comm::LocalGroup> group, int rank, int size, bool books_bytes,
                                     bool plans_gpus)
    : CheckedCommunicator(rank, size, rank, books_bytes), group_(std::move(group)), plans_gpus_(plans_gpus) {}

LocalCommunicator::~LocalCommunicator() {
  if (group_) group_->close(issued_);
}

std::string LocalCommunicator::description() const {
  return fmt::format("{}, {} {}", group_ ? "in-process" : "meta", size(), size() == 1 ? "rank" : "ranks");
}

void LocalCommunicator::queue(ExecContext& ctx, const OpInfo& info, Call call) {
  const bool traced = group_ && ctx.trace_level() != TraceLevel::off;
  ctx.dispatch(info, QueuedCollective(group_, rank(), issued_, std::move(call), ctx.stream(), traced));
  ++issued_;
}

void LocalCommunicator::abort(const Reason& reason) {
  if (group_) group_->abort(reason);
}

}  // namespace vitrine
