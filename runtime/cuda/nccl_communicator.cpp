// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include "runtime/comm/call.h"
#include "runtime/comm/capabilities.h"
#include "runtime/comm/checked_communicator.h"
#include "runtime/comm/fused.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/communicators.h"
#include "runtime/cuda/fused_sum.h"
#include "runtime/cuda/native.h"
#include "runtime/cuda/nccl_group.h"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

using comm::Call;
using comm::Operation;

// Longer than the process group takes to find which process died.
constexpr int64_t kEchoPatienceMs = 2000;

/// Type of elements that are combined.
ncclDataType_t nccl_type(DType dtype) {
  if (dtype == DType::i32) return ncclInt32;
  if (dtype == DType::f16) return ncclFloat16;
  return dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32;
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::average:
      return ncclAvg;
    case ReduceOp::sum:
      break;
  }
  return ncclSum;
}

struct Captured final : CapturedCollectives {
  std::vector<CollectiveRecord> records;  // in the order of the calls
};

class NcclCommunicator final : public CheckedCommunicator, public CollectiveCapture, public RanksInStep {
 public:
  NcclCommunicator(std::shared_ptr<NcclGroup> group, int device)
      : CheckedCommunicator(group->first_rank() + device, group->world_size(), device),
        group_(std::move(group)),
        device_(device) {}

  std::string description() const override {
    const auto of = [](const char* name) {
      const char* const value = std::getenv(name);
      return std::string(value == nullptr ? "its own choice" : value);
    };
    const bool fixed = std::getenv("NCCL_ALGO") != nullptr && std::getenv("NCCL_PROTO") != nullptr;
    return fmt::format("NCCL {}, {} ranks, algorithm {}, protocol {}{}", nccl_version(), size(), of("NCCL_ALGO"),
                       of("NCCL_PROTO"), fixed ? "" : " (sums may have other last bits in the next run)");
  }
  void abort(const Reason& reason) override {
    // NCCL also reports a lost peer, but the process group identifies the rank more reliably.
    ProcessGroup* const process_group = group_->process_group();
    if (process_group == nullptr) return group_->abort(reason);
    const Reason broken = group_->failure();
    process_group->fail(broken.empty() ? reason : broken, broken.empty() ? 0 : kEchoPatienceMs);
    const Reason verdict = process_group->failure();
    group_->abort(verdict.empty() ? reason : verdict);
  }
  Reason failure() override { return group_->failure(); }
  void set_in_step(bool in_step) override { group_->set_in_step(in_step); }

  void begin_capture() override { capture_ = std::make_unique<Captured>(); }
  std::unique_ptr<CapturedCollectives> end_capture() override { return std::move(capture_); }
  void begin_launch(const CapturedCollectives& collectives, int64_t step) override;

 private:
  bool receives_contributions() const override { return true; }
  // Launching a graph may block until another GPU's is launched, so only processes with one GPU capture. The caller may
  // destroy its own communicators before the graph.
  bool can_capture() const override { return group_->size() == 1 && group_->owned(); }
  void queue(ExecContext& ctx, const OpInfo& info, Call call) override {
    ctx.dispatch(
        info, [] {},
        [&] {
          copy_own_part(ctx, call);
          note(ctx, call);
          if (!call.tree.contributions.empty()) return add_along_tree(ctx, call);
          group_->call(device_, info.name, native_stream(ctx), [&](ncclComm_t comm) { issue(ctx, call, comm); });
        });
  }
  /// Tells the process group that this rank begins a collective. A captured collective begins when its graph is
  /// launched.
  void note(ExecContext& ctx, const Call& call);
  void issue(ExecContext& ctx, const Call& call, ncclComm_t comm);
  void issue_scattered(ExecContext& ctx, const Call& call, ncclComm_t comm);
  /// NCCL moves bytes only: each rank receives all contributions to its shard, adds them, and sends the sums to all.
  void add_along_tree(ExecContext& ctx, const Call& call);
  /// Copies the part that an operation that sends keeps on this rank.
  void copy_own_part(ExecContext& ctx, const Call& call);

  std::shared_ptr<NcclGroup> group_;
  int device_;  // of this process
  uint64_t issued_ = 0;
  std::unique_ptr<Captured> capture_;  // null: collectives run
};

void NcclCommunicator::note(ExecContext& ctx, const Call& call) {
  ProcessGroup* const process_group = group_->process_group();
  if (process_group == nullptr) return;
  CollectiveRecord record = comm::record_of(ctx, call, capture_ ? capture_->records.size() : issued_++);
  record.group = group_->number();
  record.end_is_reported = false;  // only the GPU knows
  if (capture_) {
    capture_->records.push_back(record);
  } else {
    process_group->begin_collective(device_, record);
  }
}

void NcclCommunicator::begin_launch(const CapturedCollectives& collectives, int64_t step) {
  group_->throw_if_broken();
  ProcessGroup* const process_group = group_->process_group();
  if (process_group == nullptr) return;
  for (const CollectiveRecord& record : static_cast<const Captured&>(collectives).records) {
    process_group->begin_collective(device_, comm::record_of_launch(record, issued_++, step));
  }
}

void NcclCommunicator::copy_own_part(ExecContext& ctx, const Call& call) {
  const auto* from = static_cast<const std::byte*>(call.input);
  auto* to = static_cast<std::byte*>(call.output);
  int64_t bytes = call.count * size_of(call.dtype);
  switch (call.operation) {
    case Operation::scatter:
    case Operation::gather:
      if (rank() != call.root) return;
      (call.operation == Operation::scatter ? from += part_offset(call, rank()) : to += part_offset(call, rank()));
      bytes = part_bytes(call, rank());
      break;
    case Operation::all_to_all:
      from += rank() * bytes;
      to += rank() * bytes;
      break;
    case Operation::send_receive:
      if (call.to != rank()) return;
      if (call.from != rank())
        throw CommError(fmt::format("send_receive: rank {} sends to itself, but does not receive from itself", rank()));
      break;
    default:
      return;
  }
  if (from == to || bytes == 0) return;
  VITRINE_CUDA_CHECK(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, native_stream(ctx)));
}

void NcclCommunicator::issue(ExecContext& ctx, const Call& call, ncclComm_t comm) {
  const cudaStream_t stream = native_stream(ctx);
  const auto count = static_cast<size_t>(call.count);
  const size_t bytes = count * static_cast<size_t>(size_of(call.dtype));
  switch (call.operation) {
    case Operation::all_reduce:
      return VITRINE_NCCL_CHECK(comm, nccl().AllReduce(call.input, call.output, count, nccl_type(call.dtype),
                                                       nccl_op(call.combination.op), comm, stream));
    case Operation::reduce:
      return VITRINE_NCCL_CHECK(comm, nccl().Reduce(call.input, call.output, count, nccl_type(call.dtype),
                                                    nccl_op(call.combination.op), call.root, comm, stream));
    case Operation::broadcast:
      return VITRINE_NCCL_CHECK(comm, nccl().Broadcast(rank() == call.root ? call.input : call.output, call.output,
                                                       bytes, ncclInt8, call.root, comm, stream));
    case Operation::reduce_scatter:
      return VITRINE_NCCL_CHECK(comm, nccl().ReduceScatter(call.input, call.output, count, nccl_type(call.dtype),
                                                           nccl_op(call.combination.op), comm, stream));
    case Operation::all_gather:
      return VITRINE_NCCL_CHECK(comm, nccl().AllGather(call.input, call.output, bytes, ncclInt8, comm, stream));
    case Operation::barrier: {
      void* const word = group_->word(device_);
      return VITRINE_NCCL_CHECK(comm, nccl().AllReduce(word, word, 1, ncclFloat32, ncclSum, comm, stream));
    }
    case Operation::scatter:
    case Operation::gather:
      return issue_scattered(ctx, call, comm);
    case Operation::tree_all_reduce:
    case Operation::tree_reduce_scatter:  // add_along_tree()
      return;
    case Operation::all_to_all:
    case Operation::send_receive:
      break;
  }
  if (bytes == 0) return;
  // The part that stays on this rank has been copied already.
  const auto sends_to = [&](int r) { return r != rank() && (call.operation == Operation::all_to_all || r == call.to); };
  const auto receives_from = [&](int r) {
    return r != rank() && (call.operation == Operation::all_to_all || r == call.from);
  };
  const auto place = [&](int r) {
    return call.operation == Operation::all_to_all ? static_cast<size_t>(r) * bytes : 0;
  };
  GroupCalls calls(comm);
  for (int r = 0; r < size(); ++r) {
    if (sends_to(r))
      VITRINE_NCCL_CHECK(
          comm, nccl().Send(static_cast<const std::byte*>(call.input) + place(r), bytes, ncclInt8, r, comm, stream));
    if (receives_from(r))
      VITRINE_NCCL_CHECK(
          comm, nccl().Recv(static_cast<std::byte*>(call.output) + place(r), bytes, ncclInt8, r, comm, stream));
  }
  calls.end();
}

void NcclCommunicator::issue_scattered(ExecContext& ctx, const Call& call, ncclComm_t comm) {
  const cudaStream_t stream = native_stream(ctx);
  const bool scatters = call.operation == Operation::scatter;
  const auto part = [&](int r) { return static_cast<size_t>(part_bytes(call, r)); };
  GroupCalls calls(comm);
  if (rank() == call.root) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || part(r) == 0) continue;
      if (scatters) {
        VITRINE_NCCL_CHECK(comm, nccl().Send(static_cast<const std::byte*>(call.input) + part_offset(call, r), part(r),
                                             ncclInt8, r, comm, stream));
      } else {
        VITRINE_NCCL_CHECK(comm, nccl().Recv(static_cast<std::byte*>(call.output) + part_offset(call, r), part(r),
                                             ncclInt8, r, comm, stream));
      }
    }
  } else if (part(rank()) > 0) {
    if (scatters) {
      VITRINE_NCCL_CHECK(comm, nccl().Recv(call.output, part(rank()), ncclInt8, call.root, comm, stream));
    } else {
      VITRINE_NCCL_CHECK(comm, nccl().Send(call.input, part(rank()), ncclInt8, call.root, comm, stream));
    }
  }
  calls.end();
}

void NcclCommunicator::add_along_tree(ExecContext& ctx, const Call& call) {
  const cudaStream_t stream = native_stream(ctx);
  const auto part = [&](const void* whole, int r) { return comm::tree_part(call, whole, r, size()); };
  const auto elements = [&](int r) {
    const comm::Slice shard = comm::tree_shard(call, r, size());
    return shard.end - shard.begin;
  };
  const auto bytes = [&](int r) { return static_cast<size_t>(elements(r) * size_of(call.dtype)); };
  auto* received = static_cast<std::byte*>(call.tree.received);
  std::vector<std::vector<void*>> shards(static_cast<size_t>(size()));  // of every rank's contributions to mine
  for (int r = 0; r < size(); ++r) {
    for (int64_t i = 0; i < call.tree.count_of(r); ++i) {
      const bool own = r == rank();
      shards[static_cast<size_t>(r)].push_back(own ? part(call.tree.inputs[static_cast<size_t>(i)], r) : received);
      if (!own) received += bytes(rank());
    }
  }
  const auto with_peers = [&](const auto& work) {
    group_->call(device_, comm::operation_name(call.operation), stream, [&](ncclComm_t comm) {
      GroupCalls calls(comm);
      for (int r = 0; r < size(); ++r) {
        if (r != rank()) work(comm, r);
      }
      calls.end();
    });
  };
  const auto send = [&](ncclComm_t comm, const void* data, size_t count, int to) {
    if (count > 0) VITRINE_NCCL_CHECK(comm, nccl().Send(data, count, ncclInt8, to, comm, stream));
  };
  const auto receive = [&](ncclComm_t comm, void* data, size_t count, int from) {
    if (count > 0) VITRINE_NCCL_CHECK(comm, nccl().Recv(data, count, ncclInt8, from, comm, stream));
  };
  with_peers([&](ncclComm_t comm, int r) {
    for (const void* input : call.tree.inputs) send(comm, part(input, r), bytes(r), r);
    for (void* from : shards[static_cast<size_t>(r)]) receive(comm, from, bytes(rank()), r);
  });
  const bool gathers = call.operation == Operation::tree_all_reduce;
  void* const sum = gathers ? part(call.output, rank()) : call.output;
  tree_sum(stream, call.dtype, call.tree.folds,
           call.tree.ordered([&](int r, size_t i) { return shards[static_cast<size_t>(r)][i]; }), {&sum, 1},
           elements(rank()));
  if (!gathers) return;
  with_peers([&](ncclComm_t comm, int r) {
    send(comm, sum, bytes(rank()), r);
    receive(comm, part(call.output, r), bytes(r), r);
  });
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(DeviceGroup& devices) {
  const bool given = !devices.options().nccl_communicators.empty();
  const auto group = std::make_shared<NcclGroup>(devices, !given);
  if (given) {
    group->adopt(devices);
  } else {
    group->create(devices);
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int device = 0; device < devices.size(); ++device)
    communicators.push_back(std::make_unique<NcclCommunicator>(group, device));
  return communicators;
}

std::string why_no_nccl() {
  try {
    nccl();
    return {};
  } catch (const CudaError& error) {
    return error.what();
  }
}

}  // namespace vitrine::cuda

std::string vitrine::nccl_version() {
  if (!cuda::why_no_nccl().empty()) return {};
  using cuda::nccl;
  int version = 0;
  VITRINE_NCCL_CHECK(nullptr, nccl().GetVersion(&version));
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}
