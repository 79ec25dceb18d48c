// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "runtime/comm/checked_communicator.h"
#include "runtime/comm/fused.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/communicators.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/fused_sum.h"
#include "runtime/cuda/native.h"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

using comm::Call;
using comm::Operation;

constexpr int64_t kSumGrainBytes = 256;  // bytes of a segment, which only one rank writes

class PeerGroup {
 public:
  explicit PeerGroup(DeviceGroup& devices)
      : size_(devices.size()),
        timeout_ms_(devices.options().comm_timeout_ms),
        ranks_(static_cast<size_t>(devices.size())) {
    for (int i = 0; i < size_; ++i) {
      Rank& rank = at(i);
      rank.name = fmt::format("rank {} ({})", i, devices[i].name());
      rank.gpu = devices[i].id().index;
      const DeviceScope scope(rank.gpu);
      VITRINE_CUDA_CHECK(cudaEventCreateWithFlags(&rank.ready, cudaEventDisableTiming));
      VITRINE_CUDA_CHECK(cudaEventCreateWithFlags(&rank.done, cudaEventDisableTiming));
    }
  }
  ~PeerGroup() {
    for (const Rank& rank : ranks_) {
      avoid_unused_gpu(rank.gpu);
      if (rank.ready != nullptr) cudaEventDestroy(rank.ready);
      if (rank.done != nullptr) cudaEventDestroy(rank.done);
    }
    cudaGetLastError();
  }

  /// One rank's collective: waits for the others on the host, orders its stream after theirs, queues its share, and
  /// orders its stream after their shares.
  void run(int index, const Call& call, cudaStream_t stream);
  void abort(const Reason& reason);
  Reason failure();

 private:
  struct Rank {
    std::string name;
    int gpu = 0;
    const Call* call = nullptr;
    cudaEvent_t ready = nullptr, done = nullptr;
    uint64_t sequence = 0;
    bool here = false;
  };
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  /// Returns when all ranks have arrived as often as this one. throws CommError after abort() or the deadline.
  void barrier(int index, const char* operation);
  void wait_for_peers(int index, cudaStream_t stream, cudaEvent_t Rank::*event);
  void do_share(int index, cudaStream_t stream) const;
  std::string absent() const;

  int size_;
  int64_t timeout_ms_;
  std::vector<Rank> ranks_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t arrivals_ = 0;
  int here_ = 0;
  Reason reason_;
};

void PeerGroup::barrier(int index, const char* operation) {
  std::unique_lock lock(mutex_);
  if (!reason_.empty()) throw CommError(reason_);
  const uint64_t round = arrivals_;
  at(index).here = true;
  if (++here_ == size_) {
    here_ = 0;
    for (Rank& rank : ranks_) rank.here = false;
    ++arrivals_;
    arrived_.notify_all();
    return;
  }
  const bool in_time = arrived_.wait_for(lock, std::chrono::milliseconds(timeout_ms_),
                                         [&] { return arrivals_ != round || !reason_.empty(); });
  if (arrivals_ != round) return;
  if (!in_time) {
    reason_ = fmt::format(
        "{}: {} waited longer than {} ms for {}; every rank must issue the same collectives in the same order, from a "
        "separate thread",
        operation, at(index).name, timeout_ms_, absent());
    arrived_.notify_all();
  }
  throw CommError(reason_);
}

std::string PeerGroup::absent() const {
  std::string names;
  for (const Rank& rank : ranks_) {
    if (!rank.here) names += (names.empty() ? "" : ", ") + rank.name;
  }
  return names;
}

void PeerGroup::wait_for_peers(int index, cudaStream_t stream, cudaEvent_t Rank::*event) {
  for (int r = 0; r < size_; ++r) {
    if (r != index) VITRINE_CUDA_CHECK(cudaStreamWaitEvent(stream, at(r).*event, 0));
  }
}

void PeerGroup::run(int index, const Call& call, cudaStream_t stream) {
  const char* const name = comm::operation_name(call.operation);
  Rank& me = at(index);
  try {
    me.call = &call;
    VITRINE_CUDA_CHECK(cudaEventRecord(me.ready, stream));
    barrier(index, name);
    std::array<const Call*, kMostSumRanks> calls;
    for (int r = 0; r < size_; ++r) calls[static_cast<size_t>(r)] = at(r).call;
    const std::string problem = comm::disagreement({calls.data(), static_cast<size_t>(size_)}, me.sequence++);
    if (problem.empty()) {
      wait_for_peers(index, stream, &Rank::ready);
      do_share(index, stream);
      VITRINE_CUDA_CHECK(cudaEventRecord(me.done, stream));
    }
    barrier(index, name);
    if (!problem.empty()) throw CommError(problem);
    wait_for_peers(index, stream, &Rank::done);
  } catch (const CommError&) {
    throw;
  } catch (...) {
    abort(Reason(fmt::format("{}: {} failed: ", name, me.name)) + reason_of(std::current_exception()));
    throw;
  }
}

void PeerGroup::do_share(int index, cudaStream_t stream) const {
  const auto me = static_cast<size_t>(index);
  const auto ranks = static_cast<size_t>(size_);
  const Call& mine = *ranks_[me].call;
  const auto root = static_cast<size_t>(mine.root < 0 ? 0 : mine.root);
  const int64_t bytes = mine.count * size_of(mine.dtype);
  const auto copy = [&](void* to, const void* from, int64_t count) {
    if (to != from && count > 0)
      VITRINE_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(count), cudaMemcpyDefault, stream));
  };
  std::array<const void*, kMostSumRanks> inputs;
  std::array<void*, kMostSumRanks> outputs;
  for (size_t r = 0; r < ranks; ++r) inputs[r] = ranks_[r].call->input;
  const auto sum = [&](size_t output_count, int64_t begin, int64_t end) {
    combine_to_all(stream, mine.dtype, mine.combination, {inputs.data(), ranks}, {outputs.data(), output_count}, begin,
                   end);
  };
  const comm::Slice slice = comm::slice_of(mine.count, kSumGrainBytes / size_of(mine.dtype), index, size_);
  switch (mine.operation) {
    case Operation::all_reduce:
      for (size_t r = 0; r < ranks; ++r) outputs[r] = ranks_[r].call->output;
      return sum(ranks, slice.begin, slice.end);
    case Operation::tree_all_reduce:
    case Operation::tree_reduce_scatter: {
      const comm::Slice shard = comm::tree_shard(mine, index, size_);
      const auto part = [&](const void* whole) { return comm::tree_part(mine, whole, index, size_); };
      const auto contributed =
          mine.tree.ordered([&](int r, size_t i) { return part(ranks_[static_cast<size_t>(r)].call->tree.inputs[i]); });
      const bool gathers = mine.operation == Operation::tree_all_reduce;
      for (size_t r = 0; r < ranks; ++r) outputs[r] = part(ranks_[r].call->output);
      if (!gathers) outputs[0] = mine.output;
      return tree_sum(stream, mine.dtype, mine.tree.folds, contributed, {outputs.data(), gathers ? ranks : 1},
                      shard.end - shard.begin);
    }
    case Operation::reduce:
      outputs[0] = ranks_[root].call->output;
      return sum(1, slice.begin, slice.end);
    case Operation::reduce_scatter:
      for (size_t r = 0; r < ranks; ++r) inputs[r] = static_cast<const std::byte*>(inputs[r]) + index * bytes;
      outputs[0] = mine.output;
      return sum(1, 0, mine.count);
    case Operation::broadcast:
      return copy(mine.output, ranks_[root].call->input, bytes);
    case Operation::all_gather:
      for (size_t r = 0; r < ranks; ++r)
        copy(static_cast<std::byte*>(mine.output) + static_cast<int64_t>(r) * bytes, ranks_[r].call->input, bytes);
      return;
    case Operation::scatter:
      return copy(mine.output, static_cast<const std::byte*>(ranks_[root].call->input) + part_offset(mine, index),
                  part_bytes(mine, index));
    case Operation::gather:
      return copy(static_cast<std::byte*>(ranks_[root].call->output) + part_offset(mine, index), mine.input,
                  part_bytes(mine, index));
    case Operation::all_to_all:
      for (size_t r = 0; r < ranks; ++r) {
        copy(static_cast<std::byte*>(mine.output) + static_cast<int64_t>(r) * bytes,
             static_cast<const std::byte*>(inputs[r]) + index * bytes, bytes);
      }
      return;
    case Operation::send_receive:
      if (mine.from >= 0) copy(mine.output, inputs[static_cast<size_t>(mine.from)], bytes);
      return;
    case Operation::barrier:
      return;
  }
}

void PeerGroup::abort(const Reason& reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_.empty()) return;
  reason_ = reason.empty() ? Reason("the group was aborted") : reason;
  arrived_.notify_all();
}

Reason PeerGroup::failure() {
  const std::lock_guard lock(mutex_);
  return reason_;
}

class PeerCommunicator final : public CheckedCommunicator {
 public:
  PeerCommunicator(std::shared_ptr<PeerGroup> group, int rank, int size, std::string reason)
      : CheckedCommunicator(rank, size, rank), group_(std::move(group)), reason_(std::move(reason)) {}
  std::string description() const override {
    return fmt::format("direct access to peers' memory, {} ranks ({})", size(), reason_);
  }
  void abort(const Reason& reason) override { group_->abort(reason); }
  Reason failure() override { return group_->failure(); }

 private:
  // It reads them where they are; the plan, which does not know the communicator, counts the memory.
  bool receives_contributions() const override { return true; }
  void queue(ExecContext& ctx, const OpInfo& info, Call call) override {
    ctx.dispatch(
        info, [] {}, [&] { group_->run(rank(), call, native_stream(ctx)); });
  }

  std::shared_ptr<PeerGroup> group_;
  std::string reason_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_peer_communicators(DeviceGroup& devices, const std::string& reason) {
  if (devices.size() > kMostSumRanks) {
    throw UnsupportedError(fmt::format("make_communicators: {} CUDA devices that share GPUs; a group has at most {}",
                                       devices.size(), kMostSumRanks));
  }
  for (int a = 0; a < devices.size(); ++a) {
    for (int b = 0; b < devices.size(); ++b) {
      const int from = devices[a].id().index, to = devices[b].id().index;
      if (from == to || enable_peer_access(from, to)) continue;
      throw UnsupportedError(
          fmt::format("make_communicators: cuda:{} cannot access the memory of cuda:{}, and NCCL cannot be used ({}); "
                      "use one logical "
                      "device for each GPU and a build with NCCL",
                      from, to, reason));
    }
  }
  const auto group = std::make_shared<PeerGroup>(devices);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < devices.size(); ++rank)
    communicators.push_back(std::make_unique<PeerCommunicator>(group, rank, devices.size(), reason));
  return communicators;
}

}  // namespace vitrine::cuda
