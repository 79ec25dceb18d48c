// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/scheme.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/settings.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine {

namespace {

constexpr int64_t kShareNotGiven = -1;  // "balanced" before its split is set

[[noreturn]] void throw_bad_split(std::string_view text, std::string_view why) {
  throw ConfigError({given(settings::kSplit, std::string(text)),
                     fmt::format(": it {}; use 'equal', one weight for each device ('2,3,3'), or 'gpu0=N'", why)});
}

/// The sizes of one micro-batch.
std::vector<int64_t> split_micro_batch(const Split& split, int64_t size, int64_t gpu0_size, int device_count) {
  switch (split.kind) {
    case Split::Kind::equal:
      return equal_parts(size, device_count);
    case Split::Kind::weights:
      return weighted_parts(size, split.weights);
    case Split::Kind::gpu0:
      break;
  }
  if (device_count == 1) return {size};
  std::vector<int64_t> sizes = equal_parts(size - gpu0_size, device_count - 1);
  sizes.insert(sizes.begin(), gpu0_size);
  return sizes;
}

}  // namespace

std::string Split::str() const {
  switch (kind) {
    case Kind::equal:
      return "equal";
    case Kind::weights:
      return fmt::format("{}", fmt::join(weights, ","));
    case Kind::gpu0:
      break;
  }
  return gpu0 == kShareNotGiven ? "gpu0=?" : fmt::format("gpu0={}", gpu0);
}

const std::vector<std::string>& scheme_names() {
  static const std::vector<std::string> names = {"dp", "balanced", "criterion", "ddp", "zero1", "zero2", "zero3"};
  return names;
}

const std::vector<std::string>& sharding_names() {
  static const std::vector<std::string> names = {"none", "optimizer", "gradients", "parameters"};
  return names;
}

Scheme scheme_preset(std::string_view name) {
  Scheme scheme;
  if (name == "zero1") scheme.shard = Sharding::optimizer;
  if (name == "zero2") scheme.shard = Sharding::gradients;
  if (name == "zero3" || name == "fsdp") scheme.shard = Sharding::parameters;
  if (name == "ddp" || scheme.shard != Sharding::none) return scheme;
  scheme.staging = Staging::device0;
  scheme.reduce = ReducerKind::gpu0;
  scheme.loss_at = name == "criterion" ? LossAt::parallel : LossAt::gathered;
  if (name == "balanced") {
    scheme.split.kind = Split::Kind::gpu0;
    scheme.split.gpu0 = kShareNotGiven;
  } else if (name != "dp" && name != "criterion") {
    throw ConfigError(fmt::format("mode: unknown mode '{}'; use one of {}", name, fmt::join(scheme_names(), ", ")));
  }
  return scheme;
}

Split parse_split(std::string_view text) {
  Split split;
  if (text == "equal") return split;
  constexpr std::string_view prefix = "gpu0=";
  if (text.substr(0, prefix.size()) == prefix) {
    split.kind = Split::Kind::gpu0;
    const auto share = parse_number<int64_t>(text.substr(prefix.size()));
    if (!share || *share < 0) throw_bad_split(text, "has no non-negative integer after 'gpu0='");
    split.gpu0 = *share;
    return split;
  }
  split.kind = Split::Kind::weights;
  for (const std::string& item : split_text(text, ',')) {
    const auto weight = parse_number<double>(item);
    if (!weight) throw_bad_split(text, fmt::format("has '{}' instead of a number", item));
    if (!std::isfinite(*weight) || *weight < 0.0)
      throw_bad_split(text, fmt::format("has the weight {}, expected a finite number >= 0", item));
    split.weights.push_back(*weight);
  }
  return split;
}

void validate_split(const Split& split, int64_t batch_size, int device_count) {
  if (split.kind == Split::Kind::weights) {
    if (split.weights.size() != static_cast<size_t>(device_count)) {
      throw ConfigError(
          {given(settings::kSplit, split.str()),
           fmt::format(": it has {} weight{} for {} device{}; give one weight for each device", split.weights.size(),
                       split.weights.size() == 1 ? "" : "s", device_count, device_count == 1 ? "" : "s")});
    }
    if (std::all_of(split.weights.begin(), split.weights.end(), [](double w) { return w == 0.0; })) {
      throw ConfigError(
          {given(settings::kSplit, split.str()), ": it gives no device a sample; make at least one weight positive"});
    }
  }
  if (split.kind != Split::Kind::gpu0) return;
  if (split.gpu0 < 0) {
    throw ConfigError({"the mode 'balanced' needs the share of device 0; set ", propose(settings::kSplit, "gpu0=N"),
                       ", N samples per step"});
  }
  if (split.gpu0 > batch_size) {
    throw ConfigError(
        {given(settings::kSplit, split.str()),
         fmt::format(": it is more than the batch size {0}; give device 0 at most {0} samples", batch_size)});
  }
  if (device_count == 1 && split.gpu0 < batch_size) {
    throw ConfigError(
        {given(settings::kSplit, split.str()),
         fmt::format(": it leaves {} of {} samples to other devices, but there is only one; add devices or use ",
                     batch_size - split.gpu0, batch_size),
         propose(settings::kSplit, "equal")});
  }
}

int64_t BatchPlan::micro_batch_size(int k) const {
  const auto& row = sizes[static_cast<size_t>(k)];
  return std::accumulate(row.begin(), row.end(), int64_t{0});
}

int64_t BatchPlan::device_samples(int d) const {
  int64_t samples = 0;
  for (const auto& row : sizes) samples += row[static_cast<size_t>(d)];
  return samples;
}

int64_t BatchPlan::largest_slice(int d) const {
  int64_t largest = 0;
  for (const auto& row : sizes) largest = std::max(largest, row[static_cast<size_t>(d)]);
  return largest;
}

std::vector<int64_t> equal_parts(int64_t total, int parts) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), total / parts);
  for (int64_t i = 0; i < total % parts; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

std::vector<int64_t> weighted_parts(int64_t total, const std::vector<double>& weights) {
  // Remainders are compared in units of 1e-9, so that rounding does not decide ties.
  constexpr int64_t kUnit = 1'000'000'000;
  const long double sum = std::accumulate(weights.begin(), weights.end(), 0.0L);
  std::vector<int64_t> sizes, remainders;
  for (const double weight : weights) {
    const long double quota = static_cast<long double>(total) * static_cast<long double>(weight) / sum;
    const long double whole = std::floor(quota);
    const int64_t remainder = std::llround((quota - whole) * kUnit);
    sizes.push_back(static_cast<int64_t>(whole) + remainder / kUnit);
    remainders.push_back(remainder % kUnit);
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  const int64_t left = total - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++sizes[order[static_cast<size_t>(i)]];
  return sizes;
}

namespace {

/// plan_batch() with leaves in place of samples.
BatchPlan plan_leaves(Split split, int64_t batch_size, int accumulate, int device_count) {
  const int leaves = std::exchange(split.leaves, 0);
  split.gpu0 = std::min<int64_t>(split.gpu0 * leaves / batch_size, leaves);
  BatchPlan plan = plan_batch(split, leaves, accumulate, device_count);
  plan.batch_size = batch_size;
  for (size_t k = 0; k < plan.sizes.size(); ++k) {
    auto& ranges = plan.leaves.emplace_back();
    for (size_t d = 0; d < plan.sizes[k].size(); ++d) {
      int64_t &size = plan.sizes[k][d], &first = plan.first[k][d];
      ranges.push_back({first, first + size});
      size = leaf_begin(batch_size, leaves, first + size) - leaf_begin(batch_size, leaves, first);
      first = leaf_begin(batch_size, leaves, first);
    }
  }
  return plan;
}

}  // namespace

BatchPlan plan_batch(const Split& split, int64_t batch_size, int accumulate, int device_count) {
  if (split.leaves > 0) return plan_leaves(split, batch_size, accumulate, device_count);
  BatchPlan plan;
  plan.batch_size = batch_size;
  const std::vector<int64_t> micro_batches = equal_parts(batch_size, accumulate);
  const std::vector<int64_t> gpu0_sizes = equal_parts(std::min(split.gpu0, batch_size), accumulate);
  int64_t position = 0;
  for (size_t k = 0; k < micro_batches.size(); ++k) {
    plan.sizes.push_back(split_micro_batch(split, micro_batches[k], gpu0_sizes[k], device_count));
    auto& first = plan.first.emplace_back();
    for (const int64_t size : plan.sizes.back()) {
      first.push_back(position);
      position += size;
    }
  }
  return plan;
}

int64_t row_count(const std::vector<RowRange>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [](int64_t sum, const RowRange& range) { return sum + range.size(); });
}

int64_t MicroBatch::samples() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

MicroBatch micro_batch_of_process(const BatchPlan& plan, int micro_batch, int first_device, int device_count,
                                  int64_t first_row) {
  const auto k = static_cast<size_t>(micro_batch);
  const auto mine = [&](const auto& of_devices) {
    const auto begin = of_devices.begin() + first_device;
    return std::vector(begin, begin + device_count);
  };
  MicroBatch part;
  part.sizes = mine(plan.sizes[k]);
  part.first_row = first_row;
  part.position = plan.first[k][static_cast<size_t>(first_device)];
  part.global_samples = plan.micro_batch_size(micro_batch);
  if (plan.leaves.empty()) return part;
  part.leaves = mine(plan.leaves[k]);
  part.all_leaves = {plan.leaves[k].front().begin, plan.leaves[k].back().end};
  return part;
}

ProcessPart part_of_process(const BatchPlan& plan, int first_device, int device_count) {
  ProcessPart part;
  int64_t row = 0;
  for (int k = 0; k < plan.micro_batches(); ++k) {
    if (plan.micro_batch_size(k) == 0) continue;
    if (!part.micro_batches.empty()) part.micro_batches.back().last = false;
    MicroBatch& added =
        part.micro_batches.emplace_back(micro_batch_of_process(plan, k, first_device, device_count, row));
    added.index = static_cast<int>(part.micro_batches.size()) - 1;
    row += added.samples();
    if (added.samples() > 0) part.rows.push_back({added.position, added.position + added.samples()});
  }
  return part;
}

}  // namespace vitrine
