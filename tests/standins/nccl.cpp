// SPDX-License-Identifier: Apache-2.0
// Stand-in for NCCL: ranks of one process, on any threads. Non-blocking communicators accept a call only while they are polled, so that an event
// recorded too early is detected.
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <nccl.h>

#include "tests/standins/machine.h"
#include "tests/standins/nccl_rendezvous.h"

namespace standins = vitrine::standins;
using standins::Collective;
using standins::CollectiveCall;
using standins::explain;
using standins::Transfer;

namespace {

constexpr int64_t kCommunicatorBytes = int64_t{2} << 20;  // of the device, which the real one also takes
constexpr int kPolls = 2;                                 // until a non-blocking communicator has accepted a call
constexpr const char* kFaultText = "a fault that a test asked for";
constexpr const char* kDuplicateText = "Duplicate GPU detected: two ranks on one device";

/// The ranks that share an id.
struct Group {
  explicit Group(int size) : rendezvous(size), members(static_cast<size_t>(size), nullptr) {}
  standins::Rendezvous rendezvous;
  std::atomic<int> joined{0};
  std::vector<ncclComm*> members;  // under Library::mutex
};

}  // namespace

struct ncclComm {
  Group* group = nullptr;
  standins::Device* device = nullptr;
  int rank = 0, size = 0;
  bool blocking = true;
  std::atomic<bool> aborted{false};
  std::atomic<int> under_way{0};  // calls that have not been executed yet

  std::mutex mutex;  // guards the following members
  ncclResult_t error = ncclSuccess;
  std::string last_error;
  uint64_t collectives = 0;
  int polls_to_go = 0;
  bool finalizing = false;
  std::vector<std::function<void()>> pending;  // accepted by polling
};

namespace {

/// Faults requested by tests, by rank: number of calls from now, 0: none.
struct Faults {
  std::map<int, int> hang_init, hang_call, fail_call;
};

/// Locks are taken in the order library, communicator, faults. Groups and communicators live until the process ends, because queued work refers to
/// them and reference counts would order the workers.
struct Library {
  std::shared_mutex mutex;
  std::condition_variable_any joined;
  std::map<std::string, std::unique_ptr<Group>> groups;
  std::map<ncclComm_t, std::unique_ptr<ncclComm>> communicators, retired;
  uint64_t next_id = 1;
  std::mutex faults_mutex;
  std::atomic<bool> has_faults{false};
  Faults faults;
};

Library& library() {
  static Library* const l = new Library;  // stays until the process ends
  return *l;
}

/// A call between ncclGroupStart and ncclGroupEnd.
struct Queued {
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  bool is_transfer = false;
  CollectiveCall call;
  Transfer transfer;
};
thread_local int group_depth = 0;
thread_local std::vector<Queued> queued;
thread_local std::vector<ncclComm*> initialising;

ncclComm* find(ncclComm_t comm, const char* call) {
  const std::shared_lock lock(library().mutex);
  if (library().communicators.contains(comm)) return comm;
  explain("%s: %p is no communicator, or a destroyed one", call, static_cast<void*>(comm));
  return nullptr;
}

bool counts_down(std::map<int, int> Faults::*kind, int rank) {
  if (!library().has_faults.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(library().faults_mutex);
  auto& faults = library().faults.*kind;
  const auto at = faults.find(rank);
  return at != faults.end() && at->second > 0 && --at->second == 0;
}

void add_fault(std::map<int, int> Faults::*kind, int rank, int n) {
  const std::lock_guard lock(library().faults_mutex);
  (library().faults.*kind)[rank] = n;
  library().has_faults = true;
}

void fail(ncclComm& comm, ncclResult_t error, const char* text) {
  const std::lock_guard lock(comm.mutex);
  comm.error = error;
  comm.last_error = text;
}

ncclResult_t error_of(ncclComm& comm) {
  const std::lock_guard lock(comm.mutex);
  return comm.error;
}

bool is_ready(const ncclComm& comm) { return comm.group->joined.load(std::memory_order_relaxed) == comm.size; }

void take_in(ncclComm& comm) {
  for (const auto& work : std::exchange(comm.pending, {})) work();
}

/// requires the communicator's lock. Accepts pending calls after enough polls.
ncclResult_t poll(ncclComm& comm) {
  if (comm.error != ncclSuccess) return comm.error;
  if (!is_ready(comm)) return ncclInProgress;
  if (comm.polls_to_go > 0 && --comm.polls_to_go > 0) return ncclInProgress;
  take_in(comm);
  return comm.finalizing && comm.under_way.load(std::memory_order_relaxed) > 0 ? ncclInProgress : ncclSuccess;
}

size_t input_count(const CollectiveCall& call, int size) {
  return call.collective == Collective::reduce_scatter ? call.count * static_cast<size_t>(size) : call.count;
}
size_t output_count(const CollectiveCall& call, int size) {
  return call.collective == Collective::all_gather ? call.count * static_cast<size_t>(size) : call.count;
}

bool may_touch(const ncclComm& comm, const Queued& q) {
  const auto check = [&](const void* p, size_t bytes) {
    return standins::may_touch(*comm.device, p, static_cast<int64_t>(bytes), "a buffer of NCCL");
  };
  if (q.is_transfer) return check(q.transfer.data, q.transfer.bytes);
  const bool at_root = comm.rank == q.call.root;
  const size_t bytes = standins::type_bytes(q.call.type);
  const bool reads = q.call.collective != Collective::broadcast || at_root, writes = q.call.collective != Collective::reduce || at_root;
  return (!reads || check(q.call.input, input_count(q.call, comm.size) * bytes)) &&
         (!writes || check(q.call.output, output_count(q.call, comm.size) * bytes));
}

/// What the calls of one communicator in a group queue on its streams, and when.
ncclResult_t issue(ncclComm* comm, const std::vector<Queued>& calls) {
  const std::lock_guard lock(comm->mutex);
  if (comm->error != ncclSuccess) return comm->error;
  if (!is_ready(*comm) || comm->polls_to_go > 0) {
    explain("NCCL: rank %d is called before its last call returned ncclSuccess", comm->rank);
    return ncclInvalidArgument;
  }
  const bool hangs = counts_down(&Faults::hang_call, comm->rank), fails = counts_down(&Faults::fail_call, comm->rank);
  std::vector<Transfer> transfers;
  cudaStream_t transfer_stream = nullptr;
  bool touches = true;
  for (const Queued& q : calls) {
    if (!standins::is_live(q.stream, "an NCCL call")) return ncclInvalidArgument;
    if (&q.stream->device != comm->device) {
      explain("NCCL: rank %d is on device %d, its stream on device %d", comm->rank, comm->device->index, q.stream->device.index);
      return ncclUnhandledCudaError;
    }
    if (q.is_transfer) {
      transfers.push_back(q.transfer);
      transfer_stream = q.stream;
      touches = may_touch(*comm, q) && touches;
      continue;
    }
    ++comm->under_way;
    comm->pending.push_back([comm, q, sequence = comm->collectives++, stays_away = hangs || fails] {
      standins::queue_work(q.stream, may_touch(*comm, q), [comm, call = q.call, sequence, stays_away] {
        if (stays_away) return comm->group->rendezvous.stay_away(comm->aborted);
        comm->group->rendezvous.collective(comm->rank, sequence, call, comm->aborted);
        comm->under_way.fetch_sub(1, std::memory_order_relaxed);
      });
    });
  }
  if (!transfers.empty()) {
    ++comm->under_way;
    comm->pending.push_back([comm, transfers, transfer_stream, touches, stays_away = hangs || fails] {
      standins::queue_work(transfer_stream, touches, [comm, transfers, stays_away]() mutable {
        if (stays_away) return comm->group->rendezvous.stay_away(comm->aborted);
        comm->group->rendezvous.transfer(comm->rank, transfers, comm->aborted);
        comm->under_way.fetch_sub(1, std::memory_order_relaxed);
      });
    });
  }
  if (comm->blocking || fails) take_in(*comm);
  if (fails) {
    comm->error = ncclSystemError;
    comm->last_error = kFaultText;
  }
  if (comm->blocking) return ncclSuccess;
  comm->polls_to_go = kPolls;
  return ncclInProgress;
}

ncclResult_t end_group() {
  ncclResult_t result = ncclSuccess;
  std::vector<Queued> calls = std::exchange(queued, {});
  const auto inits = std::exchange(initialising, {});
  for (ncclComm* comm : inits) {
    if (!comm->blocking) {
      result = ncclInProgress;
      continue;
    }
    std::unique_lock lock(library().mutex);
    library().joined.wait(lock, [&] { return is_ready(*comm) || error_of(*comm) != ncclSuccess; });
    if (const ncclResult_t error = error_of(*comm); error != ncclSuccess) return error;
  }
  while (!calls.empty()) {
    ncclComm* const comm = calls.front().comm;
    std::vector<Queued> mine;
    std::erase_if(calls, [&](const Queued& q) {
      if (q.comm == comm) mine.push_back(q);
      return q.comm == comm;
    });
    const ncclResult_t issued = issue(comm, mine);
    if (issued != ncclSuccess && issued != ncclInProgress) return issued;
    if (issued == ncclInProgress) result = ncclInProgress;
  }
  return result;
}

bool is_imitated(const CollectiveCall& call) {
  return standins::can_sum(call.type) &&
         (call.operation == ncclSum || call.operation == ncclMax || call.operation == ncclMin || call.operation == ncclAvg);
}

ncclResult_t add(ncclComm_t handle, cudaStream_t stream, const char* name, Queued q) {
  q.comm = find(handle, name);
  if (q.comm == nullptr) return ncclInvalidArgument;
  const int peer = q.is_transfer ? q.transfer.peer : q.call.root;
  const bool sums = !q.is_transfer && q.call.collective != Collective::broadcast && q.call.collective != Collective::all_gather;
  if (peer < 0 || peer >= q.comm->size || (sums && !is_imitated(q.call))) {
    explain("%s: this root, peer, type or operation is wrong or not supported by the stand-in", name);
    return ncclInvalidArgument;
  }
  q.stream = stream;
  queued.push_back(std::move(q));
  return group_depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const char* name, const CollectiveCall& call) {
  Queued q;
  q.call = call;
  return add(comm, stream, name, std::move(q));
}

void release(ncclComm* comm) {
  {
    const std::unique_lock lock(library().mutex);
    library().retired.insert(library().communicators.extract(comm));
    for (ncclComm*& member : comm->group->members) {
      if (member == comm) member = nullptr;
    }
    const std::lock_guard comm_lock(comm->mutex);
    comm->pending.clear();
  }
  const std::unique_lock lock(standins::state().mutex);
  comm->device->used_bytes -= kCommunicatorBytes;
}

}  // namespace

namespace vitrine::standins {

void hang_nccl_init(int rank) { add_fault(&Faults::hang_init, rank, 1); }
void hang_nccl_call(int rank, int n) { add_fault(&Faults::hang_call, rank, n); }
void fail_nccl_call(int rank, int n) { add_fault(&Faults::fail_call, rank, n); }

void break_nccl(int rank) {
  const std::shared_lock lock(library().mutex);
  for (const auto& [handle, comm] : library().communicators) {
    if (comm->rank == rank) fail(*comm, ncclSystemError, kFaultText);
  }
}

void clear_nccl_faults() {
  const std::lock_guard lock(library().faults_mutex);
  library().faults = {};
  library().has_faults = false;
}

int64_t live_communicators() {
  const std::shared_lock lock(library().mutex);
  return static_cast<int64_t>(library().communicators.size());
}

}  // namespace vitrine::standins

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t handle) {
  if (handle == nullptr) return "";
  ncclComm* const comm = find(handle, "ncclGetLastError");
  if (comm == nullptr) return "";
  const std::lock_guard lock(comm->mutex);
  return comm->last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::unique_lock lock(library().mutex);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &library().next_id, sizeof library().next_id);
  ++library().next_id;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  cudaError_t code = cudaSuccess;
  standins::Device* const device = standins::current_device(code);
  if (device == nullptr) return ncclUnhandledCudaError;
  if (size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
  auto made = std::make_unique<ncclComm>();
  ncclComm* const comm = *handle = made.get();
  comm->device = device;
  comm->rank = rank;
  comm->size = size;
  comm->blocking = config == nullptr || config->blocking != 0;
  comm->polls_to_go = comm->blocking ? 0 : kPolls;
  {
    const std::unique_lock lock(standins::state().mutex);
    device->used_bytes += kCommunicatorBytes;
  }
  {
    const std::unique_lock lock(library().mutex);
    auto& group = library().groups[std::string(id.internal, sizeof id.internal)];
    if (group == nullptr) group = std::make_unique<Group>(size);
    comm->group = group.get();
    library().communicators.emplace(comm, std::move(made));
    for (ncclComm* other : group->members) {
      if (other == nullptr || (other->rank != rank && other->device->physical != device->physical)) continue;
      fail(*comm, ncclInvalidUsage, kDuplicateText);
      fail(*other, ncclInvalidUsage, kDuplicateText);
    }
    group->members[static_cast<size_t>(rank)] = comm;
    if (!counts_down(&Faults::hang_init, rank)) ++group->joined;
  }
  library().joined.notify_all();
  initialising.push_back(comm);
  return group_depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) { return ncclCommInitRankConfig(comm, size, id, rank, nullptr); }

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int size, const int* devices) {
  ncclUniqueId id;
  int previous = 0;
  ncclResult_t result = ncclGetUniqueId(&id);
  cudaGetDevice(&previous);
  ncclGroupStart();
  for (int i = 0; i < size && result == ncclSuccess; ++i) {
    cudaSetDevice(devices == nullptr ? i : devices[i]);
    result = ncclCommInitRank(&comms[i], size, id, i);
  }
  const ncclResult_t ended = ncclGroupEnd();
  cudaSetDevice(previous);
  return result == ncclSuccess ? ended : result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  ncclComm* const comm = find(handle, "ncclCommGetAsyncError");
  if (comm == nullptr) return ncclInvalidArgument;
  const std::lock_guard lock(comm->mutex);
  *error = poll(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  ncclComm* const comm = find(handle, "ncclCommAbort");
  if (comm == nullptr) return ncclInvalidArgument;
  comm->aborted.store(true, std::memory_order_relaxed);
  comm->group->rendezvous.wake();
  release(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  ncclComm* const comm = find(handle, "ncclCommFinalize");
  if (comm == nullptr) return ncclInvalidArgument;
  const std::lock_guard lock(comm->mutex);
  comm->finalizing = true;
  return comm->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  ncclComm* const comm = find(handle, "ncclCommDestroy");
  if (comm == nullptr) return ncclInvalidArgument;
  release(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  ncclComm* const comm = find(handle, "ncclCommCount");
  if (comm == nullptr) return ncclInvalidArgument;
  *count = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  ncclComm* const comm = find(handle, "ncclCommUserRank");
  if (comm == nullptr) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  ncclComm* const comm = find(handle, "ncclCommCuDevice");
  if (comm == nullptr) return ncclInvalidArgument;
  *device = comm->device->index;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  return --group_depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream, "ncclAllReduce", {Collective::all_reduce, input, output, count, type, operation, 0});
}
ncclResult_t ncclReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return add(comm, stream, "ncclReduce", {Collective::reduce, input, output, count, type, operation, root});
}
ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, "ncclBroadcast", {Collective::broadcast, input, output, count, type, ncclSum, root});
}
ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm,
                               cudaStream_t stream) {
  return add(comm, stream, "ncclReduceScatter", {Collective::reduce_scatter, input, output, count, type, operation, 0});
}
ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, "ncclAllGather", {Collective::all_gather, input, output, count, type, ncclSum, 0});
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  Queued q;
  q.is_transfer = true;
  q.transfer = {peer, true, const_cast<void*>(data), count * standins::type_bytes(type), false};
  return add(comm, stream, "ncclSend", std::move(q));
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  Queued q;
  q.is_transfer = true;
  q.transfer = {peer, false, data, count * standins::type_bytes(type), false};
  return add(comm, stream, "ncclRecv", std::move(q));
}
