// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/local_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "runtime/comm/fused.h"
#include "runtime/cpu/affinity.h"
#include "runtime/cpu/tree_sum.h"
#include "runtime/error.h"
#include "runtime/square_sums.h"

namespace vitrine::comm {
namespace {

// How long a rank spins before it sleeps. Waking a sleeper takes tens of microseconds. If the final spin were shorter
// than that, one late sleeper would put all others to sleep as well, and so on in every following collective.
constexpr int64_t kArriveSpinNs = 5000;
constexpr int64_t kLeaveSpinNs = 100000;
constexpr int64_t kCrowdedSpinNs = 200;  // more ranks than cores: the awaited rank needs the core
constexpr int64_t kSumGrain = 16;        // floats in a cache line: no two ranks write to one
constexpr int64_t kCopyGrain = 4096;

}  // namespace

LocalGroup::LocalGroup(std::vector<std::string> device_names)
    : size_(static_cast<int>(device_names.size())),
      crowded_(device_names.size() > available_cores().size()),
      device_names_(std::move(device_names)),
      wait_causes_(device_names_.size()) {
  for (size_t rank = 0; rank < device_names_.size(); ++rank) {
    for (size_t op = 0; op < kOperationCount; ++op) {
      wait_causes_[rank][op] = device_names_[rank] + " in " + operation_name(static_cast<Operation>(op));
    }
  }
  for (Slot& slot : slots_) slot.records.resize(device_names_.size());
}

std::string LocalGroup::rank_name(int rank) const {
  return fmt::format("rank {} ({})", rank, device_names_[static_cast<size_t>(rank)]);
}

void LocalGroup::run(int rank, uint64_t sequence, const Call& call, CpuStream* traced) {
  Slot& slot = slots_[sequence % kSlots];
  const auto size = static_cast<uint32_t>(size_);
  const uint32_t freed = static_cast<uint32_t>(sequence / kSlots) * size;
  const uint32_t target = freed + size;
  const int64_t arrive_spin_ns = crowded_ ? kCrowdedSpinNs : kArriveSpinNs;
  if (!slot.left.wait(freed, arrive_spin_ns)) throw_aborted();
  slot.records[static_cast<size_t>(rank)] = {&call, traced != nullptr ? steady_now_ns() : 0};
  if (!slot.arrived.arrive(target) || !slot.arrived.wait(target, arrive_spin_ns)) throw_aborted();
  // From here on all ranks finish, aborted or not: no rank may leave while another reads its buffers.
  if (traced != nullptr) note_wait(slot.records, rank, *traced);
  std::array<const Call*, kMaxRanks> calls;
  for (size_t r = 0; r < size; ++r) calls[r] = slot.records[r].call;
  const std::string problem = disagreement({calls.data(), size}, sequence);
  if (problem.empty()) do_share(slot.records, rank);
  slot.left.leave(target);
  slot.left.wait_regardless(target, crowded_ ? kCrowdedSpinNs : kLeaveSpinNs);
  if (!problem.empty()) throw CommError(problem);
}

void LocalGroup::abort(const Reason& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  abort_reason_ = reason;
  for (Slot& slot : slots_) {
    slot.arrived.abort();
    slot.left.abort();
  }
}

void LocalGroup::close(uint64_t issued) {
  {
    const std::lock_guard lock(mutex_);
    fewest_issued_ = closed_ == 0 ? issued : std::min(fewest_issued_, issued);
    most_issued_ = std::max(most_issued_, issued);
    if (++closed_ < size_ || fewest_issued_ == most_issued_) return;
  }
  abort("the communicators were destroyed after their ranks had issued different numbers of collectives");
}

void LocalGroup::throw_aborted() {
  const std::lock_guard lock(mutex_);
  throw CommError(abort_reason_);
}

void LocalGroup::note_wait(std::span<const Record> records, int rank, CpuStream& stream) const {
  const auto last = std::max_element(records.begin(), records.end(),
                                     [](const Record& a, const Record& b) { return a.arrival_ns < b.arrival_ns; });
  const int64_t begin_ns = records[static_cast<size_t>(rank)].arrival_ns;
  if (last->arrival_ns - begin_ns < kShortestNotedWaitNs) return;
  const auto late = static_cast<size_t>(last - records.begin());
  stream.note_wait(begin_ns, steady_now_ns(), wait_causes_[late][static_cast<size_t>(last->call->operation)].c_str());
}

void LocalGroup::do_share(std::span<const Record> records, int rank) const {
  const auto ranks = static_cast<size_t>(size_);
  const auto me = static_cast<size_t>(rank);
  const Call& mine = *records[me].call;
  const int64_t element = size_of(mine.dtype);
  std::array<const void*, kMaxRanks> inputs;
  std::array<void*, kMaxRanks> sums;
  std::array<void*, kMaxRanks> outputs;
  const auto sum = [&](size_t output_count, int64_t begin, int64_t end) {
    combine_to_all(mine.dtype, mine.sum_dtype.value_or(mine.dtype), mine.combination, {inputs.data(), ranks},
                   {sums.data(), output_count}, begin, end);
  };
  for (size_t r = 0; r < ranks; ++r) inputs[r] = records[r].call->input;
  const int64_t rows_before =
      mine.counts.empty() ? 0 : std::accumulate(mine.counts.begin(), mine.counts.begin() + rank, int64_t{0});
  const int64_t row_bytes = mine.count * element;

  switch (mine.operation) {
    case Operation::all_reduce: {
      if (size_ == 1 && mine.input == mine.output && mine.squared == 0) return;
      for (size_t r = 0; r < ranks; ++r) sums[r] = records[r].call->output;
      const Slice slice = slice_of(mine.count, mine.squared > 0 ? kSquareTile : kSumGrain, rank, size_);
      if (mine.squared == 0) return sum(ranks, slice.begin, slice.end);
      std::array<double*, kMaxRanks> squares;
      for (size_t r = 0; r < ranks; ++r) squares[r] = records[r].call->squares;
      return combine_and_square(mine.combination, {inputs.data(), ranks}, {sums.data(), ranks}, slice.begin, slice.end,
                                mine.squared, {squares.data(), ranks});
    }
    case Operation::tree_all_reduce:
    case Operation::tree_reduce_scatter: {
      const Slice shard = tree_shard(mine, rank, size_);
      const auto part = [&](const void* whole) { return tree_part(mine, whole, rank, size_); };
      const auto contributed = mine.tree.ordered(
          [&](int r, size_t i) { return part(records[static_cast<size_t>(r)].call->tree.inputs[i]); });
      std::vector<void*> results;
      for (int r = 0; r < size_; ++r) {
        if (mine.root >= 0 && r != mine.root) continue;
        if (mine.operation == Operation::tree_all_reduce)
          results.push_back(part(records[static_cast<size_t>(r)].call->output));
      }
      if (mine.operation == Operation::tree_reduce_scatter) results.push_back(mine.output);
      return cpu::tree_sum(mine.dtype, mine.tree.folds, contributed, results, shard.end - shard.begin);
    }
    case Operation::reduce: {
      sums[0] = records[static_cast<size_t>(mine.root)].call->output;
      const Slice slice = slice_of(mine.count, kSumGrain, rank, size_);
      return sum(1, slice.begin, slice.end);
    }
    case Operation::reduce_scatter: {
      for (size_t r = 0; r < ranks; ++r) inputs[r] = static_cast<const std::byte*>(inputs[r]) + rank * row_bytes;
      sums[0] = mine.output;
      return sum(1, 0, mine.count);
    }
    case Operation::broadcast: {
      const Slice slice = slice_of(mine.count * element, kCopyGrain, rank, size_);
      for (size_t r = 0; r < ranks; ++r) outputs[r] = static_cast<std::byte*>(records[r].call->output) + slice.begin;
      const auto* const input = static_cast<const std::byte*>(records[static_cast<size_t>(mine.root)].call->input);
      return copy_to_all(input + slice.begin, {outputs.data(), ranks}, slice.end - slice.begin);
    }
    case Operation::all_gather: {
      const int64_t bytes = mine.count * element;
      for (size_t r = 0; r < ranks; ++r) outputs[r] = static_cast<std::byte*>(records[r].call->output) + rank * bytes;
      return copy_to_all(mine.input, {outputs.data(), ranks}, bytes);
    }
    case Operation::scatter: {
      outputs[0] = mine.output;
      const auto* const input = static_cast<const std::byte*>(records[static_cast<size_t>(mine.root)].call->input);
      return copy_to_all(input + rows_before * row_bytes, {outputs.data(), 1}, mine.counts[me] * row_bytes);
    }
    case Operation::gather: {
      outputs[0] =
          static_cast<std::byte*>(records[static_cast<size_t>(mine.root)].call->output) + rows_before * row_bytes;
      return copy_to_all(mine.input, {outputs.data(), 1}, mine.counts[me] * row_bytes);
    }
    case Operation::all_to_all: {
      for (size_t r = 0; r < ranks; ++r) {
        void* const output = static_cast<std::byte*>(mine.output) + static_cast<int64_t>(r) * row_bytes;
        copy_to_all(static_cast<const std::byte*>(inputs[r]) + rank * row_bytes, {&output, 1}, row_bytes);
      }
      return;
    }
    case Operation::send_receive: {
      if (mine.from < 0) return;
      outputs[0] = mine.output;
      return copy_to_all(inputs[static_cast<size_t>(mine.from)], {outputs.data(), 1}, row_bytes);
    }
    case Operation::barrier:
      return;
  }
}

}  // namespace vitrine::comm

namespace vitrine {
namespace {

using comm::Call;

/// A collective in a stream's queue.
class QueuedCollective {
 public:
  QueuedCollective(std::shared_ptr<comm::LocalGroup> group, int rank, uint64_t sequence, Call call, Stream& stream,
                   bool traced)
      : group_(std::move(group)),
        rank_(rank),
        traced_(traced),
        sequence_(sequence),
        call_(std::move(call)),
        stream_(&stream) {}
  QueuedCollective(QueuedCollective&&) = default;
  QueuedCollective& operator=(QueuedCollective&&) = delete;
  ~QueuedCollective() {
    if (group_) abort_peers();
  }

  void operator()() {
    const std::shared_ptr<comm::LocalGroup> group = std::move(group_);
    group->run(rank_, sequence_, call_, traced_ ? static_cast<CpuStream*>(stream_) : nullptr);
  }

 private:
  // Destroyed without having run: the stream was in error, or issuing the call failed.
  void abort_peers() noexcept {
    try {
      group_->abort(fmt::format(
          "{}: {} never took part, because an earlier operation of its stream failed; see that device's error",
          comm::operation_name(call_.operation), group_->rank_name(rank_)));
    } catch (...) {
      group_->abort("");  // no memory for the reason
    }
  }

  std::shared_ptr<comm::LocalGroup> group_;
  int rank_;
  bool traced_;
  uint64_t sequence_;
  Call call_;
  Stream* stream_;
};

}  // namespace

LocalCommunicator::LocalCommunicator(std::shared_ptr<comm::LocalGroup> group, int rank, int size, bool books_bytes,
                                     bool plans_gpus)
    : CheckedCommunicator(rank, size, rank, books_bytes), group_(std::move(group)), plans_gpus_(plans_gpus) {}

LocalCommunicator::~LocalCommunicator() {
  if (group_) group_->close(issued_);
}

std::string LocalCommunicator::description() const {
  return fmt::format("{}, {} {}", group_ ? "in-process" : "meta", size(), size() == 1 ? "rank" : "ranks");
}

void LocalCommunicator::queue(ExecContext& ctx, const OpInfo& info, Call call) {
  const bool traced = group_ && ctx.trace_level() != TraceLevel::off;
  ctx.dispatch(info, QueuedCollective(group_, rank(), issued_, std::move(call), ctx.stream(), traced));
  ++issued_;
}

void LocalCommunicator::abort(const Reason& reason) {
  if (group_) group_->abort(reason);
}

}  // namespace vitrine
