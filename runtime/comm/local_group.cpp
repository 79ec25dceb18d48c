// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/local_group.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "runtime/comm/fused.h"
#include "runtime/cpu/affinity.h"
#include "runtime/error.h"

namespace vitrine::comm {
namespace {

// How long a rank spins before it sleeps. Waking a sleeper takes tens of microseconds; were the spin for leaving shorter than that, one late
// sleeper would send all others to sleep too, and so on in every collective that follows.
constexpr int64_t kArriveSpinNs = 5000;
constexpr int64_t kLeaveSpinNs = 100000;
constexpr int64_t kCrowdedSpinNs = 200;  // more ranks than cores: the core is needed by whom we wait for
constexpr int64_t kShortestNotedWaitNs = 500;
constexpr int64_t kSumGrain = 16;  // floats in a cache line: no two ranks write one
constexpr int64_t kCopyGrain = 4096;

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string list(const std::vector<int64_t>& numbers) {
  std::vector<std::string> parts;
  for (const int64_t number : numbers) parts.push_back(std::to_string(number));
  return join(parts, ", ");
}

/// "root 0 on rank 0, 2; 1 on rank 1" when the values differ, else empty.
template <class Value>
std::string difference(const char* field, int size, const Value& value) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> groups;
  for (int rank = 0; rank < size; ++rank) {
    const std::string text = value(rank);
    if (text.empty()) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == text; });
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(rank);
  }
  if (groups.size() < 2) return {};
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : groups) parts.push_back(fmt::format("{} on rank {}", text, list(ranks)));
  return fmt::format("{} {}", field, join(parts, "; "));
}

bool same(const Call& a, const Call& b) {
  const bool same_elements = !a.knows_elements || !b.knows_elements || (a.dtype == b.dtype && a.count == b.count);
  return a.operation == b.operation && a.root == b.root && same_elements && a.counts == b.counts;
}

}  // namespace

const char* operation_name(Operation operation) {
  static constexpr std::array<const char*, kOperationCount> kNames = {"all_reduce", "reduce",  "broadcast", "reduce_scatter",
                                                                      "all_gather", "scatter", "gather",    "barrier"};
  return kNames[static_cast<size_t>(operation)];
}

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

std::string LocalGroup::rank_name(int rank) const { return fmt::format("rank {} ({})", rank, device_names_[static_cast<size_t>(rank)]); }

void LocalGroup::run(int rank, uint64_t sequence, const Call& call, CpuStream* traced) {
  Slot& slot = slots_[sequence % kSlots];
  const auto size = static_cast<uint32_t>(size_);
  const uint32_t freed = static_cast<uint32_t>(sequence / kSlots) * size;
  const uint32_t target = freed + size;
  const int64_t arrive_spin_ns = crowded_ ? kCrowdedSpinNs : kArriveSpinNs;
  if (!slot.left.wait(freed, arrive_spin_ns)) throw_aborted();
  slot.records[static_cast<size_t>(rank)] = {&call, traced != nullptr ? steady_now_ns() : 0};
  if (!slot.arrived.arrive(target) || !slot.arrived.wait(target, arrive_spin_ns)) throw_aborted();
  // From here on all ranks come to the end, abort or not: none may go while another reads its buffers.
  if (traced != nullptr) note_wait(slot.records, rank, *traced);
  const auto known = std::find_if(slot.records.begin(), slot.records.end(), [](const Record& r) { return r.call->knows_elements; });
  const Call& reference = known != slot.records.end() ? *known->call : call;
  const bool agreed = std::all_of(slot.records.begin(), slot.records.end(), [&](const Record& r) { return same(reference, *r.call); });
  const std::string problem = agreed ? std::string() : disagreement(slot.records, sequence);
  if (problem.empty()) do_share(slot.records, rank);
  slot.left.leave(target);
  slot.left.wait_regardless(target, crowded_ ? kCrowdedSpinNs : kLeaveSpinNs);
  if (!problem.empty()) throw CommError(problem);
}

void LocalGroup::abort(const std::string& reason) {
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

std::string LocalGroup::disagreement(std::span<const Record> records, uint64_t sequence) const {
  const auto call = [&](int rank) -> const Call& { return *records[static_cast<size_t>(rank)].call; };
  std::vector<std::string> fields = {
      difference("operation", size_, [&](int r) { return std::string(operation_name(call(r).operation)); }),
      difference("dtype", size_, [&](int r) { return call(r).knows_elements ? std::string(dtype_name(call(r).dtype)) : std::string(); }),
      difference("elements", size_, [&](int r) { return call(r).knows_elements ? std::to_string(call(r).count) : std::string(); }),
      difference("root", size_, [&](int r) { return call(r).root < 0 ? std::string() : std::to_string(call(r).root); }),
      difference("counts", size_, [&](int r) { return call(r).counts.empty() ? std::string() : fmt::format("({})", list(call(r).counts)); }),
  };
  std::erase(fields, std::string());
  if (fields.empty()) return {};
  return fmt::format("{}: the ranks disagree in collective {} of the group: {}; every rank must issue the same collectives in the same order",
                     operation_name(call(0).operation), sequence, join(fields, "; "));
}

void LocalGroup::note_wait(std::span<const Record> records, int rank, CpuStream& stream) const {
  const auto last = std::max_element(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.arrival_ns < b.arrival_ns; });
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
  std::array<const float*, kMaxRanks> inputs;
  std::array<float*, kMaxRanks> sums;
  std::array<void*, kMaxRanks> outputs;
  const auto sum = [&](size_t output_count, int64_t begin, int64_t end) {
    sum_to_all({inputs.data(), ranks}, {sums.data(), output_count}, begin, end);
  };
  for (size_t r = 0; r < ranks; ++r) inputs[r] = static_cast<const float*>(records[r].call->input);
  const int64_t rows_before = mine.counts.empty() ? 0 : std::accumulate(mine.counts.begin(), mine.counts.begin() + rank, int64_t{0});
  const int64_t row_bytes = mine.count * element;

  switch (mine.operation) {
    case Operation::all_reduce: {
      if (size_ == 1) return;
      for (size_t r = 0; r < ranks; ++r) sums[r] = static_cast<float*>(records[r].call->output);
      const Slice slice = slice_of(mine.count, kSumGrain, rank, size_);
      return sum(ranks, slice.begin, slice.end);
    }
    case Operation::reduce: {
      sums[0] = static_cast<float*>(records[static_cast<size_t>(mine.root)].call->output);
      const Slice slice = slice_of(mine.count, kSumGrain, rank, size_);
      return sum(1, slice.begin, slice.end);
    }
    case Operation::reduce_scatter: {
      for (size_t r = 0; r < ranks; ++r) inputs[r] += rank * mine.count;
      sums[0] = static_cast<float*>(mine.output);
      return sum(1, 0, mine.count);
    }
    case Operation::broadcast: {
      const Slice slice = slice_of(mine.count * element, kCopyGrain, rank, size_);
      for (size_t r = 0; r < ranks; ++r) outputs[r] = static_cast<std::byte*>(records[r].call->output) + slice.begin;
      return copy_to_all(outputs[static_cast<size_t>(mine.root)], {outputs.data(), ranks}, slice.end - slice.begin);
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
      outputs[0] = static_cast<std::byte*>(records[static_cast<size_t>(mine.root)].call->output) + rows_before * row_bytes;
      return copy_to_all(mine.input, {outputs.data(), 1}, mine.counts[me] * row_bytes);
    }
    case Operation::barrier:
      return;
  }
}

}  // namespace vitrine::comm
