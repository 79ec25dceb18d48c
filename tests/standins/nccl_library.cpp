// SPDX-License-Identifier: Apache-2.0
#include "tests/standins/nccl_library.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace vitrine::standins {
namespace {

constexpr const char* kFaultText = "a fault that a test asked for";
thread_local std::vector<NcclCall> calls_of_group;

void add_fault(std::map<int, int> NcclFaults::*kind, int rank, int n) {
  const std::lock_guard lock(nccl_library().faults_mutex);
  (nccl_library().faults.*kind)[rank] = n;
  nccl_library().has_faults = true;
}

ncclResult_t error_of(ncclComm& comm) {
  const std::lock_guard lock(comm.mutex);
  return comm.error;
}

bool is_ready(const ncclComm& comm) { return comm.group->joined.load(std::memory_order_relaxed) == comm.size; }

// Like the real library, ranks connect to each other in their first collective.
bool is_connected(const ncclComm& comm) { return comm.group->connecting.load(std::memory_order_relaxed) >= comm.size; }

void take_in(ncclComm& comm) {
  for (const auto& work : std::exchange(comm.pending, {})) work();
}

size_t input_count(const CollectiveCall& call, int size) {
  return call.collective == Collective::reduce_scatter ? call.count * static_cast<size_t>(size) : call.count;
}
size_t output_count(const CollectiveCall& call, int size) {
  return call.collective == Collective::all_gather ? call.count * static_cast<size_t>(size) : call.count;
}

bool may_touch_buffers(const ncclComm& comm, const NcclCall& q) {
  const auto check = [&](const void* p, size_t bytes) {
    return may_touch(*comm.device, p, static_cast<int64_t>(bytes), "a buffer of NCCL");
  };
  if (q.is_transfer) return check(q.transfer.data, q.transfer.bytes);
  const bool at_root = comm.rank == q.call.root;
  const size_t bytes = type_bytes(q.call.type);
  const bool reads = q.call.collective != Collective::broadcast || at_root,
             writes = q.call.collective != Collective::reduce || at_root;
  return (!reads || check(q.call.input, input_count(q.call, comm.size) * bytes)) &&
         (!writes || check(q.call.output, output_count(q.call, comm.size) * bytes));
}

/// A collective in a graph.
class InGraph {
 public:
  explicit InGraph(ncclComm& comm) : comm_(comm) { comm_.in_graphs.fetch_add(1, std::memory_order_relaxed); }
  ~InGraph() { comm_.in_graphs.fetch_sub(1, std::memory_order_relaxed); }
  InGraph(const InGraph&) = delete;
  InGraph& operator=(const InGraph&) = delete;

 private:
  ncclComm& comm_;
};

/// The work of one launch of a captured collective: it takes its place among the rank's collectives when the graph is
/// launched.
std::function<void()> launch_captured(ncclComm* comm, const CollectiveCall& call) {
  const std::lock_guard lock(comm->mutex);
  const uint64_t sequence = comm->collectives++;
  const bool stays_away = counts_down(&NcclFaults::hang_call, comm->rank);
  comm->under_way.fetch_add(1, std::memory_order_relaxed);
  return [comm, call, sequence, stays_away] {
    if (comm->device->error.load(std::memory_order_relaxed) != cudaSuccess) return;
    if (stays_away) return comm->group->rendezvous.stay_away(comm->aborted);
    comm->group->rendezvous.collective(comm->rank, sequence, call, comm->aborted);
    comm->under_way.fetch_sub(1, std::memory_order_relaxed);
  };
}

/// Keeps a collective for the launches of the graph that its stream captures, once the call is accepted.
void capture(ncclComm* comm, const NcclCall& q) {
  CollectiveCall call = q.call;
  call.captured = comm->captured++;
  const auto in_graph = std::make_shared<InGraph>(*comm);
  comm->pending.push_back([comm, call, in_graph, stream = q.stream, into = q.stream->capture,
                           touches = may_touch_buffers(*comm, q)] {
    if (stream->capture != into || !touches) {
      explain("NCCL: rank %d: %s", comm->rank,
              touches ? "the capture ended before the call was accepted" : "it captures a buffer that is not its own");
      into->invalid = true;
      comm->error = ncclInvalidUsage;
      return;
    }
    add_node(stream, {.at_launch = [comm, call] { return launch_captured(comm, call); }, .owner = in_graph});
  });
}

/// What the calls of one communicator in a group queue on its streams, and when.
ncclResult_t issue(ncclComm* comm, const std::vector<NcclCall>& calls) {
  const std::lock_guard lock(comm->mutex);
  if (comm->error != ncclSuccess) return comm->error;
  if (!is_ready(*comm) || comm->polls_to_go > 0 || (comm->connects && !is_connected(*comm))) {
    explain("NCCL: rank %d is called before its last call returned ncclSuccess", comm->rank);
    return ncclInvalidArgument;
  }
  for (const NcclCall& q : calls) {
    if (!is_live(q.stream, "an NCCL call")) return ncclInvalidArgument;
  }
  const bool captures = std::ranges::any_of(calls, [](const NcclCall& q) { return q.stream->capture != nullptr; });
  const bool hangs = !captures && counts_down(&NcclFaults::hang_call, comm->rank);
  const bool fails = !captures && counts_down(&NcclFaults::fail_call, comm->rank);
  std::vector<Transfer> transfers;
  cudaStream_t transfer_stream = nullptr;
  bool touches = true;
  for (const NcclCall& q : calls) {
    if (&q.stream->device != comm->device) {
      explain("NCCL: rank %d is on device %d, its stream on device %d", comm->rank, comm->device->index,
              q.stream->device.index);
      return ncclUnhandledCudaError;
    }
    if (captures && (q.is_transfer || q.stream->capture == nullptr)) {
      explain("NCCL: the stand-in captures collectives, and only all of a group");
      return ncclInvalidUsage;
    }
    if (captures) {
      capture(comm, q);
      continue;
    }
    if (q.is_transfer) {
      transfers.push_back(q.transfer);
      transfer_stream = q.stream;
      touches = may_touch_buffers(*comm, q) && touches;
      continue;
    }
    ++comm->under_way;
    comm->pending.push_back([comm, q, sequence = comm->collectives++, stays_away = hangs || fails] {
      queue_work(q.stream, may_touch_buffers(*comm, q), [comm, call = q.call, sequence, stays_away] {
        if (stays_away) return comm->group->rendezvous.stay_away(comm->aborted);
        comm->group->rendezvous.collective(comm->rank, sequence, call, comm->aborted);
        comm->under_way.fetch_sub(1, std::memory_order_relaxed);
      });
    });
  }
  if (!transfers.empty()) {
    ++comm->under_way;
    comm->pending.push_back([comm, transfers, transfer_stream, touches, stays_away = hangs || fails] {
      queue_work(transfer_stream, touches, [comm, transfers, stays_away]() mutable {
        if (stays_away) return comm->group->rendezvous.stay_away(comm->aborted);
        comm->group->rendezvous.transfer(comm->rank, transfers, comm->aborted);
        comm->under_way.fetch_sub(1, std::memory_order_relaxed);
      });
    });
  }
  if (!comm->connects && (comm->collectives > 0 || comm->captured > 0)) {
    comm->connects = true;
    const std::unique_lock memory(state().mutex);
    comm->device->used_bytes += kConnectionBytes;
    comm->group->connecting.fetch_add(1, std::memory_order_relaxed);
  }
  if (fails) {
    take_in(*comm);
    comm->error = ncclSystemError;
    comm->last_error = kFaultText;
  }
  if (comm->blocking) return ncclSuccess;
  comm->polls_to_go = kPolls;
  return ncclInProgress;
}

/// The end of a call on a blocking communicator. Polls, because this wait must not order the code under test.
ncclResult_t wait_for_peers(ncclComm* comm) {
  while (true) {
    {
      const std::lock_guard lock(comm->mutex);
      if (comm->error != ncclSuccess) return comm->error;
      if (comm->aborted.load(std::memory_order_relaxed)) return ncclInternalError;
      if (!comm->connects || is_connected(*comm)) {
        take_in(*comm);
        return ncclSuccess;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool is_imitated(const CollectiveCall& call) {
  return can_sum(call.type) && (call.operation == ncclSum || call.operation == ncclMax || call.operation == ncclMin ||
                                call.operation == ncclAvg);
}

}  // namespace

NcclLibrary& nccl_library() {
  static NcclLibrary* const l = new NcclLibrary;  // stays until the process ends
  return *l;
}

ncclComm* find_communicator(ncclComm_t comm, const char* call) {
  const std::shared_lock lock(nccl_library().mutex);
  if (nccl_library().communicators.contains(comm) && !comm->released.load(std::memory_order_relaxed)) return comm;
  explain("%s: %p is no communicator, or a destroyed one", call, static_cast<void*>(comm));
  return nullptr;
}

bool counts_down(std::map<int, int> NcclFaults::*kind, int rank) {
  if (!nccl_library().has_faults.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(nccl_library().faults_mutex);
  auto& faults = nccl_library().faults.*kind;
  const auto at = faults.find(rank);
  return at != faults.end() && at->second > 0 && --at->second == 0;
}

void fail_communicator(ncclComm& comm, ncclResult_t error, const char* text) {
  const std::lock_guard lock(comm.mutex);
  comm.error = error;
  comm.last_error = text;
}

ncclResult_t poll_communicator(ncclComm& comm) {
  if (comm.error != ncclSuccess) return comm.error;
  if (!is_ready(comm)) return ncclInProgress;
  if (comm.blocking) return ncclSuccess;
  if (comm.connects && !is_connected(comm)) return ncclInProgress;
  if (comm.polls_to_go > 0 && --comm.polls_to_go > 0) return ncclInProgress;
  take_in(comm);
  if (comm.error != ncclSuccess) return comm.error;
  const bool is_used =
      comm.under_way.load(std::memory_order_relaxed) > 0 || comm.in_graphs.load(std::memory_order_relaxed) > 0;
  return comm.finalizing && is_used ? ncclInProgress : ncclSuccess;
}

ncclResult_t end_nccl_group() {
  ncclResult_t result = ncclSuccess;
  std::vector<NcclCall> calls = std::exchange(calls_of_group, {});
  const auto inits = std::exchange(nccl_initialising, {});
  for (ncclComm* comm : inits) {
    if (!comm->blocking) {
      result = ncclInProgress;
      continue;
    }
    std::unique_lock lock(nccl_library().mutex);
    nccl_library().joined.wait(lock, [&] { return is_ready(*comm) || error_of(*comm) != ncclSuccess; });
    if (const ncclResult_t error = error_of(*comm); error != ncclSuccess) return error;
  }
  std::vector<ncclComm*> blocking;
  while (!calls.empty()) {
    ncclComm* const comm = calls.front().comm;
    std::vector<NcclCall> mine;
    std::erase_if(calls, [&](const NcclCall& q) {
      if (q.comm == comm) mine.push_back(q);
      return q.comm == comm;
    });
    const ncclResult_t issued = issue(comm, mine);
    if (issued != ncclSuccess && issued != ncclInProgress) return issued;
    if (issued == ncclInProgress) result = ncclInProgress;
    if (comm->blocking) blocking.push_back(comm);
  }
  for (ncclComm* comm : blocking) {
    comm->in_call.store(true, std::memory_order_relaxed);
    const ncclResult_t waited = wait_for_peers(comm);
    comm->in_call.store(false, std::memory_order_relaxed);
    if (waited != ncclSuccess) return waited;
  }
  return result;
}

ncclResult_t add_call(ncclComm_t handle, cudaStream_t stream, const char* name, NcclCall q) {
  if (note_call(Call::collective, name)) return ncclSystemError;
  q.comm = find_communicator(handle, name);
  if (q.comm == nullptr) return ncclInvalidArgument;
  const int peer = q.is_transfer ? q.transfer.peer : q.call.root;
  const bool sums =
      !q.is_transfer && q.call.collective != Collective::broadcast && q.call.collective != Collective::all_gather;
  if (peer < 0 || peer >= q.comm->size || (sums && !is_imitated(q.call))) {
    explain("%s: this root, peer, type or operation is wrong or not supported by the stand-in", name);
    return ncclInvalidArgument;
  }
  q.stream = stream;
  calls_of_group.push_back(std::move(q));
  return nccl_group_depth > 0 ? ncclSuccess : end_nccl_group();
}

void release_communicator(ncclComm* comm) {
  {
    const std::unique_lock lock(nccl_library().mutex);
    if (comm->in_graphs.load(std::memory_order_relaxed) == 0)
      nccl_library().retired.insert(nccl_library().communicators.extract(comm));
    comm->released.store(true, std::memory_order_relaxed);
    for (ncclComm*& member : comm->group->members) {
      if (member == comm) member = nullptr;
    }
    const std::lock_guard comm_lock(comm->mutex);
    comm->pending.clear();
  }
  const std::unique_lock lock(state().mutex);
  comm->device->used_bytes -= kCommunicatorBytes + (comm->connects ? kConnectionBytes : 0);
}

bool ends_before_graphs(ncclComm& comm, const char* call) {
  const int graphs = comm.in_graphs.load(std::memory_order_relaxed);
  if (graphs == 0) return false;
  explain("%s: rank %d: %d of its collectives are in graphs that exist; it waits for their end", call, comm.rank,
          graphs);
  const std::unique_lock lock(nccl_library().mutex);
  ++nccl_library().ended_before_graphs;
  return true;
}

void hang_nccl_init(int rank) { add_fault(&NcclFaults::hang_init, rank, 1); }
void hang_nccl_call(int rank, int n) { add_fault(&NcclFaults::hang_call, rank, n); }
void fail_nccl_call(int rank, int n) { add_fault(&NcclFaults::fail_call, rank, n); }

void break_nccl(int rank) {
  const std::shared_lock lock(nccl_library().mutex);
  for (const auto& [handle, comm] : nccl_library().communicators) {
    if (comm->rank == rank) fail_communicator(*comm, ncclSystemError, kFaultText);
  }
}

int64_t communicators_ended_before_graphs() {
  const std::shared_lock lock(nccl_library().mutex);
  return nccl_library().ended_before_graphs;
}

int creator_of_nccl_id(uint64_t id) {
  const std::shared_lock lock(nccl_library().mutex);
  return nccl_library().id_creators.at(id);
}

void clear_nccl_faults() {
  {
    const std::unique_lock lock(nccl_library().mutex);
    nccl_library().ended_before_graphs = 0;
  }
  const std::lock_guard lock(nccl_library().faults_mutex);
  nccl_library().faults = {};
  nccl_library().has_faults = false;
}

int64_t live_communicators() {
  const std::unique_lock lock(nccl_library().mutex);
  auto& communicators = nccl_library().communicators;
  for (auto at = communicators.begin(); at != communicators.end();) {
    const auto comm = at++;
    if (!comm->second->released.load(std::memory_order_relaxed) ||
        comm->second->in_graphs.load(std::memory_order_relaxed) > 0)
      continue;
    nccl_library().retired.insert(communicators.extract(comm));
  }
  return static_cast<int64_t>(communicators.size());
}

}  // namespace vitrine::standins
