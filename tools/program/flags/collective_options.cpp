// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {

namespace {

/// throws ConfigError.
void check_counts(CollectiveOptions& c) {
  if (std::all_of(c.counts.begin(), c.counts.end(), [](int64_t count) { return count == 0; })) {
    throw ConfigError(
        fmt::format("--counts {}: all parts are empty; give at least one rank something", fmt::join(c.counts, ",")));
  }
  const auto takes = [](const std::string& name) { return name == "scatter" || name == "gather"; };
  if (c.names.empty()) c.names = {"scatter", "gather"};
  const auto other = std::find_if_not(c.names.begin(), c.names.end(), takes);
  if (other != c.names.end())
    throw ConfigError(fmt::format("--counts: the parts of {} are equal; it goes with scatter and gather", *other));
}

}  // namespace

std::span<const CollectiveTraits> all_collectives() {
  static constexpr CollectiveTraits kAll[] = {
      {.collective = Collective::scatter, .name = "scatter", .has_root = true, .in_parts = true, .takes_counts = true},
      {.collective = Collective::gather, .name = "gather", .has_root = true, .in_parts = true, .takes_counts = true},
      {.collective = Collective::broadcast, .name = "broadcast", .has_root = true},
      {.collective = Collective::reduce, .name = "reduce", .sums = true, .has_root = true},
      {.collective = Collective::all_reduce, .name = "all_reduce", .sums = true},
      {.collective = Collective::reduce_scatter, .name = "reduce_scatter", .sums = true, .in_parts = true},
      {.collective = Collective::all_gather, .name = "all_gather", .in_parts = true},
      {.collective = Collective::alltoall, .name = "alltoall", .in_parts = true, .in_place = false},
      {.collective = Collective::sendrecv, .name = "sendrecv", .in_place = false},
      {.collective = Collective::reduce_broadcast, .name = "reduce_broadcast", .sums = true, .has_root = true},
      {.collective = Collective::tree_all_reduce, .name = "tree_all_reduce", .sums = true}};
  return kAll;
}

const CollectiveTraits& traits_of(Collective collective) { return all_collectives()[static_cast<size_t>(collective)]; }

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const CollectiveTraits& collective : all_collectives()) names.emplace_back(collective.name);
  return names;
}

void resolve_collectives(const CLI::App& app, CollectiveOptions& c) {
  if (!c.counts.empty()) check_counts(c);
  const bool all = c.names.empty();
  if (all) c.names = collective_names();
  c.dtype = c.datatype == "half" || c.datatype == "f16"        ? DType::f16
            : c.datatype == "bfloat16" || c.datatype == "bf16" ? DType::bf16
            : c.datatype == "int32" || c.datatype == "i32"     ? DType::i32
                                                               : DType::f32;
  const auto reduces = [&](const CollectiveTraits& collective) {
    return collective.sums && std::find(c.names.begin(), c.names.end(), collective.name) != c.names.end();
  };
  if (app.count("-o") > 0 && std::ranges::none_of(all_collectives(), reduces)) {
    throw ConfigError(
        fmt::format("-o {}: {} {} no reduction; it goes with reduce, all_reduce, reduce_scatter and reduce_broadcast",
                    c.reduction, fmt::join(c.names, ", "), c.names.size() == 1 ? "is" : "are"));
  }
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::average}) {
    if (c.reduction == reduce_op_name(op)) c.op = op;
  }
  if (c.op != ReduceOp::sum || c.dtype == DType::i32) {  // it adds floating-point numbers
    const auto tree = std::find(c.names.begin(), c.names.end(), traits_of(Collective::tree_all_reduce).name);
    if (tree != c.names.end() && !all)
      throw ConfigError("tree_all_reduce: expected -o sum and a floating-point -d; leave it out, or change them");
    if (tree != c.names.end()) c.names.erase(tree);
  }
  if (c.first_bytes) c.min_bytes = c.max_bytes = *c.first_bytes;
  if (c.last_bytes) {
    c.max_bytes = *c.last_bytes;
    if (!c.first_bytes) c.min_bytes = std::min(c.min_bytes, c.max_bytes);
  }
  if (app.count("-i") > 0 && app.count("-f") > 0)
    throw ConfigError("-f and -i both say how sizes grow; give one of them");
  if (c.min_bytes > c.max_bytes)
    throw ConfigError(fmt::format("-b {}: it is larger than -e {}", c.min_bytes, c.max_bytes));
  if (c.min_bytes < size_of(c.dtype))
    throw ConfigError(fmt::format("-b {}: one element of {} has {} bytes", c.min_bytes, c.datatype, size_of(c.dtype)));
}

int64_t next_size(const CollectiveOptions& c, int64_t bytes) {
  if (c.step_bytes > 0) return bytes + c.step_bytes;
  const double next = static_cast<double>(bytes) * c.step_factor;
  if (next >= static_cast<double>(c.max_bytes) + 1) return c.max_bytes + 1;
  return std::max(bytes + 1, static_cast<int64_t>(next));
}

}  // namespace vitrine::tools
