// SPDX-License-Identifier: Apache-2.0
// Stand-in for NCCL: ranks of one process, on any threads. Non-blocking communicators accept a call only while they are
// polled, so that an event recorded too early is detected. A collective on a stream that is captured becomes part of
// the graph, and every launch takes part in it again; as with NCCL, all ranks must launch graphs of the same capture,
// and a communicator exists until the graphs with its collectives are destroyed.
#include <cstring>
#include <utility>

#include "tests/standins/nccl_library.h"

using namespace vitrine::standins;  // NOLINT: the entry points are global

namespace {

constexpr const char* kDuplicateText = "Duplicate GPU detected: two ranks on one device";

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const char* name, const CollectiveCall& call) {
  NcclCall q;
  q.call = call;
  return add_call(comm, stream, name, std::move(q));
}

}  // namespace

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
  ncclComm* const comm = find_communicator(handle, "ncclGetLastError");
  if (comm == nullptr) return "";
  const std::lock_guard lock(comm->mutex);
  return comm->last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::unique_lock lock(nccl_library().mutex);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &nccl_library().next_id, sizeof nccl_library().next_id);
  int device = 0;
  while (!is_of_this_process(device)) ++device;
  nccl_library().id_creators[nccl_library().next_id] = device;
  ++nccl_library().next_id;
  return ncclSuccess;
}

// Ranks with different lists of ids wait for each other forever, as with NCCL.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* handle, int size, int rank, int id_count, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  cudaError_t code = cudaSuccess;
  Device* const device = current_device(code);
  if (device == nullptr) return ncclUnhandledCudaError;
  if (size < 1 || rank < 0 || rank >= size || id_count < 1 || id_count > size) return ncclInvalidArgument;
  std::string key;
  for (int i = 0; i < id_count; ++i) key.append(ids[i].internal, sizeof ids[i].internal);
  auto made = std::make_unique<ncclComm>();
  ncclComm* const comm = *handle = made.get();
  comm->device = device;
  comm->rank = rank;
  comm->size = size;
  comm->blocking = config == nullptr || config->blocking != 0;
  comm->polls_to_go = comm->blocking ? 0 : kPolls;
  {
    const std::unique_lock lock(state().mutex);
    device->used_bytes += kCommunicatorBytes;
  }
  {
    const std::unique_lock lock(nccl_library().mutex);
    auto& group = nccl_library().groups[key];
    if (group == nullptr) group = std::make_unique<NcclRanks>(size);
    comm->group = group.get();
    nccl_library().communicators.emplace(comm, std::move(made));
    for (ncclComm* other : group->members) {
      if (other == nullptr || (other->rank != rank && other->device->physical != device->physical)) continue;
      fail_communicator(*comm, ncclInvalidUsage, kDuplicateText);
      fail_communicator(*other, ncclInvalidUsage, kDuplicateText);
    }
    group->members[static_cast<size_t>(rank)] = comm;
    if (!counts_down(&NcclFaults::hang_init, rank)) ++group->joined;
  }
  nccl_library().joined.notify_all();
  nccl_initialising.push_back(comm);
  return nccl_group_depth > 0 ? ncclSuccess : end_nccl_group();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return ncclCommInitRankScalable(handle, size, rank, 1, &id, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

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
  ncclComm* const comm = find_communicator(handle, "ncclCommGetAsyncError");
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->in_call.load(std::memory_order_relaxed)) {
    explain("ncclCommGetAsyncError: rank %d is inside a call on another thread", comm->rank);
    return ncclInvalidUsage;
  }
  const std::lock_guard lock(comm->mutex);
  *error = poll_communicator(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  count_call(Call::other);
  ncclComm* const comm = find_communicator(handle, "ncclCommAbort");
  if (comm == nullptr) return ncclInvalidArgument;
  comm->aborted.store(true, std::memory_order_relaxed);
  comm->group->rendezvous.wake();
  release_communicator(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  count_call(Call::other);
  ncclComm* const comm = find_communicator(handle, "ncclCommFinalize");
  if (comm == nullptr) return ncclInvalidArgument;
  ends_before_graphs(*comm, "ncclCommFinalize");
  const std::lock_guard lock(comm->mutex);
  comm->finalizing = true;
  return comm->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  count_call(Call::other);
  ncclComm* const comm = find_communicator(handle, "ncclCommDestroy");
  if (comm == nullptr) return ncclInvalidArgument;
  if (ends_before_graphs(*comm, "ncclCommDestroy")) return ncclInvalidUsage;
  release_communicator(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  ncclComm* const comm = find_communicator(handle, "ncclCommCount");
  if (comm == nullptr) return ncclInvalidArgument;
  *count = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  ncclComm* const comm = find_communicator(handle, "ncclCommUserRank");
  if (comm == nullptr) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  ncclComm* const comm = find_communicator(handle, "ncclCommCuDevice");
  if (comm == nullptr) return ncclInvalidArgument;
  *device = comm->device->index;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++nccl_group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (nccl_group_depth == 0) return ncclInvalidUsage;
  return --nccl_group_depth > 0 ? ncclSuccess : end_nccl_group();
}

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, "ncclAllReduce", {Collective::all_reduce, input, output, count, type, operation, 0});
}
ncclResult_t ncclReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, "ncclReduce", {Collective::reduce, input, output, count, type, operation, root});
}
ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, "ncclBroadcast", {Collective::broadcast, input, output, count, type, ncclSum, root});
}
ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, "ncclReduceScatter", {Collective::reduce_scatter, input, output, count, type, operation, 0});
}
ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream, "ncclAllGather", {Collective::all_gather, input, output, count, type, ncclSum, 0});
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  NcclCall q;
  q.is_transfer = true;
  q.transfer = {peer, true, const_cast<void*>(data), count * type_bytes(type), false};
  return add_call(comm, stream, "ncclSend", std::move(q));
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  NcclCall q;
  q.is_transfer = true;
  q.transfer = {peer, false, data, count * type_bytes(type), false};
  return add_call(comm, stream, "ncclRecv", std::move(q));
}
