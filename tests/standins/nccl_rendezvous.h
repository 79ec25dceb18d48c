// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <nccl.h>

namespace vitrine::standins {

enum class Collective : uint8_t { all_reduce, reduce, broadcast, reduce_scatter, all_gather };

/// Arguments of one rank.
struct CollectiveCall {
  Collective collective = Collective::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // as in NCCL's signature
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t operation = ncclSum;
  int root = 0;
  int64_t captured = -1;  // number among those that its rank captured in graphs; -1: it was not captured

  bool agrees_with(const CollectiveCall& other) const;
};

/// One rank's part of a transfer between two.
struct Transfer {
  int peer = 0;
  bool sends = false;
  void* data = nullptr;
  size_t bytes = 0;
  bool done = false;
};

size_t type_bytes(ncclDataType_t type);
bool can_sum(ncclDataType_t type);

/// Synchronizes the stream workers of a group's ranks. The last one to arrive does the work of all, in rank order; the
/// others wait. As with NCCL, ranks that disagree wait until they are aborted.
class Rendezvous {
 public:
  explicit Rendezvous(int ranks) : ranks_(ranks) {}

  /// Returns when the collective is done or this rank was aborted.
  void collective(int rank, uint64_t sequence, const CollectiveCall& call, const std::atomic<bool>& aborted);
  /// The same for transfers, each with one peer, all at once.
  void transfer(int rank, std::vector<Transfer>& transfers, const std::atomic<bool>& aborted);
  /// Takes no part, and returns when the rank is aborted.
  void stay_away(const std::atomic<bool>& aborted);
  /// Wakes waiting ranks, because one was aborted.
  void wake();

 private:
  struct Slot {
    explicit Slot(int ranks) : calls(static_cast<size_t>(ranks)) {}
    std::vector<const CollectiveCall*> calls;  // null: not arrived
    bool done = false;
    int inside = 0;
  };
  /// Transfers from one rank to another that wait for their counterpart.
  struct Channel {
    std::deque<Transfer*> sends, receives;
  };
  bool all_agree(const Slot& slot, uint64_t sequence) const;

  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Slot> slots_;
  std::map<std::pair<int, int>, Channel> channels_;
};

}  // namespace vitrine::standins
