// SPDX-License-Identifier: Apache-2.0
#include "tests/standins/nccl_rendezvous.h"

#include <algorithm>
#include <cstring>

#include "tests/standins/arithmetic.h"
#include "tests/standins/machine.h"
#include "tests/standins/sanitizers.h"

namespace vitrine::standins {
namespace {

cudaDataType_t cuda_type(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return CUDA_R_64F;
    case ncclFloat16:
      return CUDA_R_16F;
    case ncclBfloat16:
      return CUDA_R_16BF;
    case ncclInt32:
      return CUDA_R_32I;
    case ncclInt64:
      return CUDA_R_64I;
    default:
      return CUDA_R_32F;
  }
}

/// outputs[..][0, count) = inputs[0][begin, ...) + inputs[1][...] + ..., in this order.
void sum(const std::vector<const CollectiveCall*>& calls, size_t begin, size_t count,
         const std::vector<void*>& outputs) {
  const CollectiveCall& first = *calls[0];
  const size_t element = type_bytes(first.type);
  const auto bytes = static_cast<int64_t>(count * element);
  std::vector<const void*> inputs;
  for (const CollectiveCall* call : calls) {
    inputs.push_back(static_cast<const std::byte*>(call->input) + begin * element);
    tell_read(inputs.back(), bytes);
  }
  for (void* output : outputs) tell_write(output, bytes);
  const Combination combination = first.operation == ncclMax   ? Combination::most
                                  : first.operation == ncclMin ? Combination::least
                                  : first.operation == ncclAvg ? Combination::average
                                                               : Combination::sum;
  combine(combination, inputs, outputs, count, cuda_type(first.type));
}

void copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

/// All ranks' shares at once.
void carry_out(const std::vector<const CollectiveCall*>& calls) {
  const CollectiveCall& first = *calls[0];
  const size_t bytes = first.count * type_bytes(first.type);
  const auto root = static_cast<size_t>(first.root);
  std::vector<void*> outputs;
  for (const CollectiveCall* call : calls) outputs.push_back(call->output);
  switch (first.collective) {
    case Collective::all_reduce:
      return sum(calls, 0, first.count, outputs);
    case Collective::reduce:
      return sum(calls, 0, first.count, {outputs[root]});
    case Collective::broadcast:
      for (void* output : outputs) copy(output, calls[root]->input, bytes);
      return;
    case Collective::reduce_scatter:
      // An output may be the rank's own part of its input, which no other rank's sum reads.
      for (size_t rank = 0; rank < calls.size(); ++rank) sum(calls, rank * first.count, first.count, {outputs[rank]});
      return;
    case Collective::all_gather:
      for (size_t rank = 0; rank < calls.size(); ++rank) {
        for (void* output : outputs) copy(static_cast<std::byte*>(output) + rank * bytes, calls[rank]->input, bytes);
      }
      return;
  }
}

}  // namespace

bool can_sum(ncclDataType_t type) { return type == ncclFloat32 || cuda_type(type) != CUDA_R_32F; }

size_t type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

bool CollectiveCall::agrees_with(const CollectiveCall& other) const {
  return collective == other.collective && count == other.count && type == other.type && operation == other.operation &&
         root == other.root && captured == other.captured;
}

bool Rendezvous::all_agree(const Slot& slot, uint64_t sequence) const {
  for (size_t rank = 1; rank < slot.calls.size(); ++rank) {
    if (slot.calls[0]->agrees_with(*slot.calls[rank])) continue;
    const bool same_capture = slot.calls[0]->captured == slot.calls[rank]->captured;
    explain(
        "NCCL: ranks 0 and %zu disagree on collective %lu%s: it never completes", rank, sequence,
        same_capture ? "" : " (one issues it and the other launches a graph, or the graphs are of different captures)");
    return false;
  }
  return true;
}

void Rendezvous::collective(int rank, uint64_t sequence, const CollectiveCall& call, const std::atomic<bool>& aborted) {
  std::unique_lock lock(mutex_);
  Slot& slot = slots_.try_emplace(sequence, ranks_).first->second;
  const CollectiveCall*& mine = slot.calls[static_cast<size_t>(rank)];
  mine = &call;
  ++slot.inside;
  const bool complete = std::ranges::all_of(slot.calls, [](const CollectiveCall* c) { return c != nullptr; });
  if (complete && all_agree(slot, sequence)) {
    carry_out(slot.calls);
    slot.done = true;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return slot.done || aborted.load(std::memory_order_relaxed); });
  if (!slot.done) mine = nullptr;
  if (--slot.inside == 0) slots_.erase(sequence);
}

void Rendezvous::transfer(int rank, std::vector<Transfer>& transfers, const std::atomic<bool>& aborted) {
  std::unique_lock lock(mutex_);
  const auto channel_of = [&](const Transfer& t) -> Channel& {
    return channels_[t.sends ? std::pair(rank, t.peer) : std::pair(t.peer, rank)];
  };
  for (Transfer& t : transfers) {
    Channel& channel = channel_of(t);
    auto& mine = t.sends ? channel.sends : channel.receives;
    auto& theirs = t.sends ? channel.receives : channel.sends;
    if (theirs.empty()) {
      mine.push_back(&t);
      continue;
    }
    Transfer& other = *theirs.front();
    theirs.pop_front();
    if (other.bytes != t.bytes) {
      explain("NCCL: rank %d and rank %d disagree on the size of a transfer: it never completes", rank, t.peer);
      continue;
    }
    t.sends ? copy(other.data, t.data, t.bytes) : copy(t.data, other.data, t.bytes);
    t.done = other.done = true;
    changed_.notify_all();
  }
  const auto all_done = [&] { return std::ranges::all_of(transfers, [](const Transfer& t) { return t.done; }); };
  changed_.wait(lock, [&] { return all_done() || aborted.load(std::memory_order_relaxed); });
  for (Transfer& t : transfers) {
    if (!t.done) std::erase(t.sends ? channel_of(t).sends : channel_of(t).receives, &t);
  }
}

void Rendezvous::stay_away(const std::atomic<bool>& aborted) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted.load(std::memory_order_relaxed); });
}

void Rendezvous::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace vitrine::standins
