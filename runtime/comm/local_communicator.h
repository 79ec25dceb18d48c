// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/abortable_barrier.h"
#include "runtime/comm/call.h"
#include "runtime/comm/capabilities.h"
#include "runtime/comm/checked_communicator.h"
#include "runtime/comm/communicator.h"
#include "runtime/cpu/stream.h"

namespace vitrine::comm {

inline constexpr int64_t kShortestNotedWaitNs = 500;

/// State shared by the communicators of one in-process group. Every collective has a sequence number, assigned when it
/// is issued, and a slot in a ring, so collectives of one group may run concurrently on several streams of a device
/// without ordering them.
class LocalGroup {
 public:
  static constexpr int kMaxRanks = kMostCpuDevices;
  explicit LocalGroup(std::vector<std::string> device_names);

  int size() const { return size_; }
  /// "rank 2 (cpu:2)".
  std::string rank_name(int rank) const;

  /// Waits for the other ranks, does this rank's share, and returns when all have done theirs. Called on a stream's
  /// worker.
  ///   traced  null, or the stream on which the wait for the last rank is recorded
  /// throws  CommError on all ranks if they disagree, or if the group was aborted
  void run(int rank, uint64_t sequence, const Call& call, CpuStream* traced);
  void abort(const Reason& reason);
  /// A rank's communicator was destroyed after it issued `issued` collectives. When the last one is, aborts collectives
  /// that not all ranks issued.
  void close(uint64_t issued);

 private:
  // Concurrent collectives of one group on several streams of a device; a further one waits for the oldest.
  static constexpr uint64_t kSlots = 16;
  struct alignas(64) Record {
    const Call* call = nullptr;
    int64_t arrival_ns = 0;
  };
  struct Slot {
    alignas(64) AbortableBarrier arrived;
    alignas(64) AbortableBarrier left;
    std::vector<Record> records;
  };
  [[noreturn]] void throw_aborted();
  void note_wait(std::span<const Record> records, int rank, CpuStream& stream) const;
  void do_share(std::span<const Record> records, int rank) const;

  int size_;
  bool crowded_;  // more ranks than cores
  std::vector<std::string> device_names_;
  std::vector<std::array<std::string, kOperationCount>> wait_causes_;  // "cpu:2 in all_reduce"
  std::array<Slot, kSlots> slots_;
  std::mutex mutex_;
  Reason abort_reason_;
  bool aborted_ = false;
  int closed_ = 0;
  uint64_t fewest_issued_ = 0;
  uint64_t most_issued_ = 0;
};

}  // namespace vitrine::comm

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
