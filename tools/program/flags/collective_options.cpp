// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/collective_options.h"

#include <algorithm>
#include <cctype>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "runtime/units.h"
#include "tools/program/flags/flag_values.h"
#include "tools/program/run/collective_bench.h"

namespace vitrine::tools {

namespace {

/// Sizes up to this can be doubled and added without overflow.
constexpr int64_t kMostBytes = int64_t{1} << 50;

/// A size of nccl-tests: 8, 64K, 32M, 1G (powers of 1024), or 64KiB.
int64_t parse_collective_bytes(const std::string& option, const std::string& text) {
  const bool letter = !text.empty() && std::string("KMG").find(static_cast<char>(
                                           std::toupper(static_cast<unsigned char>(text.back())))) != std::string::npos;
  int64_t bytes = 0;
  try {
    bytes = parse_bytes(letter ? text.substr(0, text.size() - 1) +
                                     static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))) + "iB"
                               : text);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{} {}: {}", option, text, error.what()));
  }
  if (bytes > kMostBytes) throw ConfigError(fmt::format("{} {}: expected at most 1024TiB (1 PiB)", option, text));
  return bytes;
}

std::vector<int64_t> parse_counts(const std::string& text) {
  std::vector<int64_t> counts;
  for (const std::string& item : split_text(text, ',')) {
    const std::optional<int64_t> count = parse_number<int64_t>(item);
    if (!count || *count < 0 || *count > (int64_t{1} << 30)) {
      throw ConfigError(fmt::format(
          "--counts {}: '{}' is not a count from 0 to 2^30; give one for each rank, as 8,19,19,18", text, item));
    }
    counts.push_back(*count);
  }
  if (std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count == 0; })) {
    throw ConfigError(fmt::format("--counts {}: all parts are empty; give at least one rank something", text));
  }
  return counts;
}

/// throws ConfigError.
void resolve_counts(const CollectiveTexts& t, CollectiveOptions& c) {
  c.counts = parse_counts(t.counts);
  const auto takes = [](const std::string& name) { return name == "scatter" || name == "gather"; };
  if (c.names.empty()) c.names = {"scatter", "gather"};
  const auto other = std::find_if_not(c.names.begin(), c.names.end(), takes);
  if (other != c.names.end())
    throw ConfigError(fmt::format("--counts: the parts of {} are equal; it goes with scatter and gather", *other));
}

}  // namespace

void add_collective_options(CLI::App& app, CollectiveOptions& c, CollectiveTexts& t) {
  app.add_option("NAME", c.names,
                 "scatter, gather, broadcast, reduce, all_reduce, reduce_scatter, all_gather, alltoall, sendrecv (a "
                 "ring), gpu0_star (reduce + "
                 "broadcast) [all]")
      ->check(one_of(collective_names()))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(CLI::OptionDefaults().get_group());
  app.option_defaults()->group("Sizes");
  app.add_option("-b,--minbytes", t.min_bytes, "Smallest size: 8, 64K, 32M [64K, or the value of -e]");
  app.add_option("-e,--maxbytes", t.max_bytes, "Largest size [16M, or the value of -b]");
  app.add_option("-f,--stepfactor", c.step_factor, "Factor between successive sizes")
      ->check(number(1.0001, 1e6))
      ->capture_default_str();
  app.add_option("-i,--stepbytes", t.step_bytes, "Bytes between successive sizes, instead of a factor");
  app.option_defaults()->group("Operation");
  app.add_option("-n,--iters", c.iterations, "Timed operations")
      ->check(whole_number(1, 1 << 24))
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", c.warm_up, "Operations before the timed ones")
      ->check(whole_number(0, 1 << 24))
      ->capture_default_str();
  app.add_option("-c,--check", c.check, "1: check every element of the results, 0: do not")->capture_default_str();
  app.add_option("-d,--datatype", t.dtype, "float, half, bfloat16 or int32")
      ->check(one_of({"float", "half", "bfloat16", "int32", "f32", "f16", "bf16", "i32"}))
      ->capture_default_str();
  app.add_option("-o,--op", t.redop, "Reduction: sum, min, max or avg")
      ->check(one_of({"sum", "min", "max", "avg"}))
      ->capture_default_str();
  app.add_option("-r,--root", c.root, "Rank of the root")->check(whole_number(0, 1 << 20))->capture_default_str();
  app.add_option("--counts", t.counts, "Relative part of each rank in scatter and gather: 8,19,19,18 [equal]");
}

void resolve_collectives(const CLI::App& app, const CollectiveTexts& t, CollectiveOptions& c) {
  if (!t.counts.empty()) resolve_counts(t, c);
  if (c.names.empty()) c.names = collective_names();
  c.dtype = t.dtype == "half" || t.dtype == "f16"        ? DType::f16
            : t.dtype == "bfloat16" || t.dtype == "bf16" ? DType::bf16
                                                         : DType::f32;
  if (t.dtype == "int32" || t.dtype == "i32") c.dtype = DType::i32;
  const auto reduces = [&](Collective collective) {
    return sums(collective) && std::find(c.names.begin(), c.names.end(), collective_name(collective)) != c.names.end();
  };
  if (app.count("-o") > 0 && std::none_of(std::begin(kCollectives), std::end(kCollectives), reduces)) {
    throw ConfigError(
        fmt::format("-o {}: {} {} no reduction; it goes with reduce, all_reduce, reduce_scatter and gpu0_star", t.redop,
                    fmt::join(c.names, ", "), c.names.size() == 1 ? "is" : "are"));
  }
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::average}) {
    if (t.redop == reduce_op_name(op)) c.op = op;
  }
  if (!t.min_bytes.empty()) c.min_bytes = c.max_bytes = parse_collective_bytes("-b", t.min_bytes);
  if (!t.max_bytes.empty()) {
    c.max_bytes = parse_collective_bytes("-e", t.max_bytes);
    if (t.min_bytes.empty()) c.min_bytes = std::min(c.min_bytes, c.max_bytes);
  }
  if (!t.step_bytes.empty()) {
    c.step_bytes = parse_collective_bytes("-i", t.step_bytes);
    if (app.count("-f") > 0) throw ConfigError("-f and -i both say how sizes grow; give one of them");
    if (c.step_bytes == 0) throw ConfigError("-i 0: sizes must grow; give a size above 0");
  }
  if (c.min_bytes > c.max_bytes)
    throw ConfigError(fmt::format("-b {}: it is larger than -e {}", t.min_bytes, t.max_bytes));
  if (c.min_bytes < size_of(c.dtype))
    throw ConfigError(fmt::format("-b {}: one element of {} has {} bytes", c.min_bytes, t.dtype, size_of(c.dtype)));
}

int64_t next_size(const CollectiveOptions& c, int64_t bytes) {
  if (c.step_bytes > 0) return bytes + c.step_bytes;
  const double next = static_cast<double>(bytes) * c.step_factor;
  if (next >= static_cast<double>(c.max_bytes) + 1) return c.max_bytes + 1;
  return std::max(bytes + 1, static_cast<int64_t>(next));
}

}  // namespace vitrine::tools
