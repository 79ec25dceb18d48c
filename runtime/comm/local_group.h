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
#include "runtime/cpu/stream.h"

namespace vitrine::comm {

/// What the communicators of one in-process group share. Every collective has a sequence number, given when it is issued, and its own slot in
/// a ring; so collectives of one group may run at once on several streams of a device without ordering these.
class LocalGroup {
 public:
  static constexpr int kMaxRanks = 64;
  explicit LocalGroup(std::vector<std::string> device_names);

  int size() const { return size_; }
  /// "rank 2 (cpu:2)".
  std::string rank_name(int rank) const;

  /// Meets the other ranks, does this rank's share, and returns once all have. On a stream's worker.
  ///   traced  null, or the stream on which the wait for the last rank is noted
  /// throws  CommError when the ranks disagree (on all of them), or the group was aborted
  void run(int rank, uint64_t sequence, const Call& call, CpuStream* traced);
  void abort(const std::string& reason);
  /// A rank's communicator is gone, having issued so many collectives. Once all are gone, collectives that not all ranks issued are ended.
  void close(uint64_t issued);

 private:
  // Collectives of one group in flight at once on several streams of a device; one more waits for the oldest.
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
  std::string abort_reason_;
  bool aborted_ = false;
  int closed_ = 0;
  uint64_t fewest_issued_ = 0;
  uint64_t most_issued_ = 0;
};

}  // namespace vitrine::comm
