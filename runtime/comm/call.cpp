// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/call.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "runtime/exec_context.h"
#include "runtime/hash.h"

namespace vitrine::comm {
namespace {

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

std::string list(const std::vector<Contribution>& contributions) {
  std::vector<std::string> parts;
  for (const auto& [node, rank] : contributions)
    parts.push_back(fmt::format("[{}, {}) of rank {}", node.begin, node.end, rank));
  return join(parts, ", ");
}

/// Lists differing values: "root 0 on rank 0, 2; 1 on rank 1". Empty if all are equal.
template <class Value>
std::string difference(const char* field, int size, const Value& value) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> groups;
  for (int rank = 0; rank < size; ++rank) {
    const std::string text = value(rank);
    if (text.empty()) continue;
    auto group = std::ranges::find_if(groups, [&](const auto& g) { return g.first == text; });
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
  return a.operation == b.operation && a.root == b.root && same_elements && a.counts == b.counts &&
         a.combination == b.combination && a.squared == b.squared && a.tree.contributions == b.tree.contributions;
}

/// Describes mismatched senders and receivers; empty if every rank receives from the rank that sends to it.
std::string unmatched(std::span<const Call* const> calls) {
  const auto call = [&](int rank) -> const Call& { return *calls[static_cast<size_t>(rank)]; };
  for (int rank = 0; rank < static_cast<int>(calls.size()); ++rank) {
    const int to = call(rank).to, from = call(rank).from;
    if (to >= 0 && call(to).from != rank)
      return fmt::format("rank {} sends to rank {}, which does not receive from it", rank, to);
    if (from >= 0 && call(from).to != rank)
      return fmt::format("rank {} receives from rank {}, which does not send to it", rank, from);
  }
  return {};
}

}  // namespace

const char* operation_name(Operation operation) {
  static constexpr std::array<const char*, kOperationCount> kNames = {
      "all_reduce", "reduce",     "broadcast",    "reduce_scatter",  "all_gather",          "scatter",
      "gather",     "all_to_all", "send_receive", "tree_all_reduce", "tree_reduce_scatter", "barrier"};
  return kNames[static_cast<size_t>(operation)];
}

std::string disagreement(std::span<const Call* const> calls, uint64_t sequence) {
  const auto known = std::ranges::find_if(calls, [](const Call* call) { return call->knows_elements; });
  const Call& reference = known != calls.end() ? **known : *calls[0];
  if (std::ranges::all_of(calls, [&](const Call* call) { return same(reference, *call); })) {
    const std::string problem = reference.operation == Operation::send_receive ? unmatched(calls) : std::string();
    return problem.empty()
               ? problem
               : fmt::format("send_receive: the ranks disagree in collective {} of the group: {}", sequence, problem);
  }
  const int size = static_cast<int>(calls.size());
  const auto call = [&](int rank) -> const Call& { return *calls[static_cast<size_t>(rank)]; };
  std::vector<std::string> fields = {
      difference("operation", size, [&](int r) { return std::string(operation_name(call(r).operation)); }),
      difference(
          "dtype", size,
          [&](int r) { return call(r).knows_elements ? std::string(dtype_name(call(r).dtype)) : std::string(); }),
      difference("operator", size, [&](int r) { return std::string(reduce_op_name(call(r).combination.op)); }),
      difference("elements", size,
                 [&](int r) { return call(r).knows_elements ? std::to_string(call(r).count) : std::string(); }),
      difference("squared elements", size, [&](int r) { return std::to_string(call(r).squared); }),
      difference("root", size, [&](int r) { return call(r).root < 0 ? std::string() : std::to_string(call(r).root); }),
      difference(
          "counts", size,
          [&](int r) { return call(r).counts.empty() ? std::string() : fmt::format("({})", list(call(r).counts)); }),
      difference("contributions", size, [&](int r) { return list(call(r).tree.contributions); }),
  };
  std::erase(fields, std::string());
  if (fields.empty()) return {};
  return fmt::format(
      "{}: the ranks disagree in collective {} of the group: {}; every rank must issue the same collectives in the "
      "same order",
      operation_name(call(0).operation), sequence, join(fields, "; "));
}

int64_t TreeSum::count_of(int rank) const {
  return std::ranges::count_if(contributions, [rank](const Contribution& c) { return c.rank == rank; });
}

std::vector<Part> parts_of_one_owner(std::span<const uint8_t> folds, std::span<const int> owners) {
  struct Partial {
    Part part;
    std::optional<int> owner;  // nothing: of several owners, whose parts are in the result
  };
  std::vector<Part> parts;
  std::vector<Partial> partials;
  const auto keep = [&](const Partial& partial) {
    if (partial.owner) parts.push_back(partial.part);
  };
  for (size_t i = 0; i < folds.size(); ++i) {
    Partial sum{{i, i + 1}, owners[i]};
    for (int fold = 0; fold < folds[i]; ++fold) {
      const Partial left = partials.back();
      partials.pop_back();
      if (left.owner && left.owner == sum.owner) {
        sum.part.begin = left.part.begin;
        continue;
      }
      keep(left);
      keep(sum);
      sum = {{left.part.begin, sum.part.end}, std::nullopt};
    }
    partials.push_back(sum);
  }
  keep(partials.front());
  std::ranges::sort(parts, [](const Part& a, const Part& b) { return a.begin < b.begin; });
  return parts;
}

int64_t part_offset(const Call& call, int rank) {
  return std::accumulate(call.counts.begin(), call.counts.begin() + rank, int64_t{0}) * call.count *
         size_of(call.dtype);
}

int64_t part_bytes(const Call& call, int rank) {
  return call.counts[static_cast<size_t>(rank)] * call.count * size_of(call.dtype);
}

Slice tree_shard(const Call& call, int rank, int size) {
  constexpr int64_t kGrain = 64;  // elements of a shard are a multiple of this, except at the end
  if (call.operation == Operation::tree_all_reduce) return slice_of(call.count, kGrain, rank, size);
  return {rank * call.count, (rank + 1) * call.count};
}

std::byte* tree_part(const Call& call, const void* whole, int rank, int size) {
  const int64_t offset = tree_shard(call, rank, size).begin * size_of(call.dtype);
  return const_cast<std::byte*>(static_cast<const std::byte*>(whole)) + offset;
}

CollectiveRecord record_of(const ExecContext& ctx, const Call& call, uint64_t sequence) {
  CollectiveRecord record;
  record.sequence = sequence;
  record.operation = operation_name(call.operation);
  record.label = ctx.layer();
  record.phase = phase_name(ctx.phase());
  record.step = ctx.step();
  record.bytes = call.count * size_of(call.dtype);
  uint64_t hash = hash_number(hash_number(0, static_cast<uint64_t>(call.operation)), static_cast<uint64_t>(call.root));
  hash = hash_number(hash, static_cast<uint64_t>(call.combination.op));
  if (call.counts.empty())
    hash = hash_number(hash_number(hash, static_cast<uint64_t>(call.dtype)), static_cast<uint64_t>(call.count));
  for (const int64_t count : call.counts) hash = hash_number(hash, static_cast<uint64_t>(count));
  for (const Contribution& c : call.tree.contributions) {
    for (const int64_t number : {c.node.begin, c.node.end, int64_t{c.rank}})
      hash = hash_number(hash, static_cast<uint64_t>(number));
  }
  hash = hash_bytes(hash, record.label.data(), static_cast<int64_t>(record.label.size()));
  record.signature = hash_number(hash, static_cast<uint64_t>(record.step));
  return record;
}

CollectiveRecord record_of_launch(const CollectiveRecord& captured, uint64_t sequence, int64_t step) {
  CollectiveRecord record = captured;
  record.in_graph = true;
  record.sequence = sequence;
  record.step = step;
  record.signature = hash_number(hash_number(captured.signature, 1), static_cast<uint64_t>(step));
  return record;
}

}  // namespace vitrine::comm

namespace vitrine {

const char* reduce_op_name(ReduceOp op) {
  static constexpr std::array<const char*, 4> kNames = {"sum", "min", "max", "avg"};
  return kNames[static_cast<size_t>(op)];
}

}  // namespace vitrine
