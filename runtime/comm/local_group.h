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
#include "runtime/comm/communicator.h"
#include "runtime/cpu/stream.h"

namespace vitrine::comm {

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
