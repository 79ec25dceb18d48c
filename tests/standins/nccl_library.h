// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/standins/machine.h"
#include "tests/standins/nccl_rendezvous.h"

/// The communicators of the stand-in for NCCL, and the calls that they accept. nccl.cpp has the entry points.
namespace vitrine::standins {

inline constexpr int kPolls = 2;  // until a non-blocking communicator has accepted a call

/// The ranks that share an id.
struct NcclRanks {
  explicit NcclRanks(int size) : rendezvous(size), members(static_cast<size_t>(size), nullptr) {}
  Rendezvous rendezvous;
  std::atomic<int> joined{0};
  std::atomic<int> connecting{0};  // ranks that have issued their first collective
  std::vector<ncclComm*> members;  // under NcclLibrary::mutex
};

}  // namespace vitrine::standins

struct ncclComm {
  vitrine::standins::NcclRanks* group = nullptr;
  vitrine::standins::Device* device = nullptr;
  int rank = 0, size = 0;
  bool blocking = true;
  std::atomic<bool> aborted{false};
  std::atomic<bool> in_call{false};  // a thread issues a call
  std::atomic<int> under_way{0};     // calls that have not been executed yet
  std::atomic<int> in_graphs{
      0};  // collectives in graphs that exist: an abort frees the communicator when there are none
  std::atomic<bool> released{false};

  std::mutex mutex;  // guards the following members
  ncclResult_t error = ncclSuccess;
  std::string last_error;
  uint64_t collectives = 0;
  int64_t captured = 0;  // collectives
  int polls_to_go = 0;
  bool finalizing = false;
  bool connects = false;                       // it has issued its first collective, which waits for those of all ranks
  std::vector<std::function<void()>> pending;  // accepted by polling
};

namespace vitrine::standins {

/// Faults requested by tests, by rank: number of calls from now, 0: none.
struct NcclFaults {
  std::map<int, int> hang_init, hang_call, fail_call;
};

/// Locks are taken in the order library, communicator, faults. Groups and communicators live until the process ends,
/// because queued work refers to them and reference counts would order the workers.
struct NcclLibrary {
  std::shared_mutex mutex;
  std::condition_variable_any joined;
  std::map<std::string, std::unique_ptr<NcclRanks>> groups;
  std::map<ncclComm_t, std::unique_ptr<ncclComm>> communicators, retired;
  uint64_t next_id = 1;
  std::map<uint64_t, int> id_creators;  // see creator_of_nccl_id()
  int64_t ended_before_graphs = 0;
  std::mutex faults_mutex;
  std::atomic<bool> has_faults{false};
  NcclFaults faults;
};

NcclLibrary& nccl_library();

/// A call between ncclGroupStart and ncclGroupEnd.
struct NcclCall {
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  bool is_transfer = false;
  CollectiveCall call;
  Transfer transfer;
};
inline thread_local int nccl_group_depth = 0;
inline thread_local std::vector<ncclComm*> nccl_initialising;  // between ncclGroupStart and ncclGroupEnd

/// The communicator, or null with an explanation.
ncclComm* find_communicator(ncclComm_t comm, const char* call);
/// Whether a fault is due now: counts down.
bool counts_down(std::map<int, int> NcclFaults::*kind, int rank);
void fail_communicator(ncclComm& comm, ncclResult_t error, const char* text);
/// Accepts pending calls after enough polls. requires the communicator's lock
ncclResult_t poll_communicator(ncclComm& comm);
/// Queues a call until the group ends, or issues it.
ncclResult_t add_call(ncclComm_t handle, cudaStream_t stream, const char* name, NcclCall call);
ncclResult_t end_nccl_group();
void release_communicator(ncclComm* comm);
/// Whether graphs with its collectives exist; then explains that `call` waits for their end, and counts it.
bool ends_before_graphs(ncclComm& comm, const char* call);

}  // namespace vitrine::standins
