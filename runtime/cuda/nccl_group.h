// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <nccl.h>

#include "runtime/cuda/shared_library.h"
#include "runtime/device.h"
#include "runtime/process_group/process_group.h"

/// The unique ids through which the ranks of an NCCL group find each other. A thread of the process that created an id
/// receives every rank that joins through it, one after the other, which takes long for thousands, so a large group
/// shares several ids (ncclCommInitRankScalable).
namespace vitrine::cuda {

// The functions of NCCL that we call, without their prefix.
#define VITRINE_NCCL_FUNCTIONS(use, prefix)                                                                          \
  use(prefix, AllGather) use(prefix, AllReduce) use(prefix, Broadcast) use(prefix, CommAbort) use(prefix, CommCount) \
      use(prefix, CommCuDevice) use(prefix, CommDestroy) use(prefix, CommFinalize) use(prefix, CommGetAsyncError)    \
          use(prefix, CommInitRankScalable) use(prefix, CommUserRank) use(prefix, GetErrorString)                    \
              use(prefix, GetLastError) use(prefix, GetUniqueId) use(prefix, GetVersion) use(prefix, GroupEnd)       \
                  use(prefix, GroupStart) use(prefix, Recv) use(prefix, Reduce) use(prefix, ReduceScatter)           \
                      use(prefix, Send)

struct Nccl {
  VITRINE_NCCL_FUNCTIONS(VITRINE_LIBRARY_MEMBER, nccl)
};

/// NCCL, loaded by the first call. throws CudaError with the loader's reason and the remedy
const Nccl& nccl();

/// As in PyTorch and XLA.
inline constexpr int kRanksPerNcclId = 128;

/// Ids for a group: one for every `ranks_per_id` ranks, the last for the rest. requires both above 0
int nccl_id_count(int world_size, int ranks_per_id);
/// Where NCCL expects id `id` of `count` to come from: the first of the ranks that join through it. Ranks are divided
/// in order, and the first world_size % count ids have one more than the others.
int first_rank_of_nccl_id(int id, int count, int world_size);

/// The ids of a new group, NCCL_UNIQUE_ID_BYTES each, in one order that is the same on all processes. The process of an
/// id's first rank creates it. With several processes, all of them call it. throws CommError
std::string exchange_nccl_ids(const DeviceGroup& devices, int ranks_per_id = kRanksPerNcclId);

/// throws CommError for an error of NCCL, CudaError for one of CUDA.
void check_nccl(ncclResult_t result, ncclComm_t comm, const char* expression, const char* file, int line);
#define VITRINE_NCCL_CHECK(comm, expression) \
  ::vitrine::cuda::check_nccl((expression), comm, #expression, __FILE_NAME__, __LINE__)

/// Between ncclGroupStart and ncclGroupEnd, even if an exception is thrown.
class GroupCalls {
 public:
  explicit GroupCalls(ncclComm_t comm = nullptr) : comm_(comm) { VITRINE_NCCL_CHECK(comm_, nccl().GroupStart()); }
  ~GroupCalls() {
    if (!ended_) nccl().GroupEnd();
  }
  GroupCalls(const GroupCalls&) = delete;
  GroupCalls& operator=(const GroupCalls&) = delete;
  void end() {
    ended_ = true;
    VITRINE_NCCL_CHECK(comm_, nccl().GroupEnd());
  }

 private:
  ncclComm_t comm_;
  bool ended_ = false;
};

/// NCCL's communicators of this process's devices in one group, and operations that concern all of them.
///
/// Communicators that it creates are non-blocking, although NCCL then starts a thread for each call: a rank that does
/// not join the group is named within the deadline, and an abort is allowed at any time. The caller's may be blocking.
class NcclGroup {
 public:
  /// owned  the group creates the communicators and aborts them at its end; otherwise they are the caller's
  NcclGroup(DeviceGroup& devices, bool owned);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Creates communicators, waits until all ranks have joined, and connects them. throws CommError
  void create(DeviceGroup& devices);
  /// Takes the communicators of DeviceGroupOptions. throws ConfigError if they do not match the devices
  void adopt(DeviceGroup& devices);
  /// Calls NCCL for a rank and waits until the call has been accepted; only then may an event be recorded after it. In
  /// step, it begins when all ranks of this process have come here, and ends with its work on the stream.
  void call(int index, const char* operation, cudaStream_t stream, const std::function<void(ncclComm_t)>& work);
  /// See RanksInStep. Between collectives.
  void set_in_step(bool in_step) { in_step_.store(in_step, std::memory_order_relaxed); }
  /// throws CommError if the group or the process group is broken.
  void throw_if_broken();
  /// Aborts the communicators, and with them calls that wait for their peers, from any thread. NCCL frees them when the
  /// graphs that contain their collectives are destroyed.
  void abort(const Reason& reason);
  /// Why the group is broken, or empty.
  Reason failure();

  void* word(int rank) { return at(rank).word; }
  /// Whether the group creates its communicators and ends them.
  bool owned() const { return owned_; }
  /// Ranks of this process.
  int size() const { return static_cast<int>(ranks_.size()); }
  int first_rank() const { return first_rank_; }
  int world_size() const { return world_size_; }
  ProcessGroup* process_group() const { return process_group_.get(); }
  /// Number of this group in the process group.
  int number() const { return number_; }

 private:
  struct Rank {
    std::mutex mutex;           // guards comm and in_call; held during queries of comm, because an abort frees it
    ncclComm_t comm = nullptr;  // null after an abort
    bool in_call = false;       // a thread is in a call to NCCL
    std::condition_variable returned;
    int gpu = 0;
    void* word = nullptr;  // one float in device memory, for barriers
    std::string name;
    std::atomic<int64_t> begun{0};  // calls
  };
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  /// Calls work(i) for each rank of this process, in one group of calls.
  void call_for_all(const std::function<void(int)>& work);
  /// ids  as exchange_nccl_ids() returns them
  void start_joining(const std::string& ids);
  /// Peers on other machines may still need data that NCCL sends outside the streams: lets it finish if it does so
  /// soon.
  void leave_peers() noexcept;
  /// Connects the ranks: NCCL 2.22 and newer takes most of its memory in the first collective.
  void connect(DeviceGroup& devices);
  void wait_until_ready(const char* what);
  /// throws the reason if the group is aborted, or an asynchronous error.
  bool in_progress(Rank& rank);
  /// Waits while waits() holds. throws CommError after an abort, and aborts after the deadline.
  void wait_while(int index, const char* operation, const std::function<bool()>& waits);
  /// Aborts when one rank of this process is behind another for the whole deadline: its thread may wait inside CUDA,
  /// for the work of a GPU that waits for this rank.
  void watch(const std::stop_token& stop);
  void throw_if_aborted();
  /// Why a call of the rank has waited too long.
  std::string lateness(int index, const char* operation);
  void allocate_words(DeviceGroup& devices);

  std::vector<Rank> ranks_;  // of this process
  bool owned_;
  int first_rank_, world_size_;
  int64_t timeout_ms_;
  std::shared_ptr<ProcessGroup> process_group_;  // null if this process is alone
  int number_ = 0;
  uint64_t handler_ = 0;
  std::atomic<bool> in_step_{false};
  std::mutex mutex_;
  Reason reason_;
  std::condition_variable_any ends_;
  std::jthread watch_;  // where no process group watches several ranks
};

}  // namespace vitrine::cuda
