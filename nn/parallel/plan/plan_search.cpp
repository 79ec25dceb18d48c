// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/plan_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "nn/parallel/plan/plan.h"
#include "nn/segments.h"
#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine {
namespace {

// Number of larger batch sizes tried beyond the one that bisection found.
constexpr int64_t kBatchesBeyond = 8;

Workload workload_under(const Workload& workload, const EngineConfig& config) {
  if (workload.under) {
    Workload under = workload.under(config);
    under.under = workload.under;
    under.stop = workload.stop;
    return under;
  }
  Workload full;
  if (!workload.train_batches.empty()) full.train_batches = {config.batch_size};
  if (!workload.evaluate_batches.empty())
    full.evaluate_batches = {config.exact() ? config.batch_size
                                            : (config.batch_size + config.accumulate - 1) / config.accumulate};
  return full;
}

bool same_size(const EngineConfig& a, const EngineConfig& b) {
  return a.batch_size == b.batch_size && a.accumulate == b.accumulate;
}

/// Bytes of a device as a line: fixed + each * samples.
struct Line {
  double fixed = 0, each = 0;
};

/// Slices that sum to `total` and leave every device the same headroom under its line; none has fewer than 0 samples.
std::vector<int64_t> equalize_headroom(const std::vector<Line>& lines, const std::vector<double>& capacities,
                                       int64_t total) {
  // Headroom h leaves device d (capacity - fixed - h) / each samples: the sum falls with h, which is found by
  // bisection.
  const auto samples = [&](double headroom) {
    std::vector<double> shares;
    for (size_t d = 0; d < lines.size(); ++d)
      shares.push_back(std::max(0.0, (capacities[d] - lines[d].fixed - headroom) / lines[d].each));
    return shares;
  };
  const auto [least, most] = std::ranges::minmax_element(capacities);
  double low = *least, high = *most;
  for (const Line& line : lines) low -= line.fixed + line.each * static_cast<double>(total);
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    const std::vector<double> shares = samples(middle);
    (std::accumulate(shares.begin(), shares.end(), 0.0) > static_cast<double>(total) ? low : high) = middle;
  }
  std::vector<double> shares = samples(low);
  if (std::ranges::all_of(shares, [](double s) { return s <= 0.0; })) shares.assign(shares.size(), 1.0);
  return weighted_parts(total, shares);
}

}  // namespace

EngineConfig with_slices(EngineConfig config, const std::vector<int64_t>& slices) {
  config.scheme.split = Split{Split::Kind::weights, {slices.begin(), slices.end()}, 0, config.scheme.split.leaves};
  return config;
}

bool Fit::fits() const { return tightest() >= 0; }
int64_t Fit::tightest() const { return *std::ranges::min_element(headroom); }

PlannedDevices::PlannedDevices(DeviceGroup& devices) : groups_{&devices}, first_rank_(devices.first_rank()) {
  if (devices[0].id().backend == Backend::meta && devices.process_count() > 1) {
    groups_.clear();
    first_rank_ = 0;
    for (int process = 0; process < devices.process_count(); ++process) {
      const bool is_this = process == devices.process();
      groups_.push_back(is_this ? &devices : others_.emplace_back(devices.in_process(process)).get());
    }
  }
  for (DeviceGroup* const group : groups_) {
    for (int d = 0; d < group->size(); ++d) devices_.push_back(&(*group)[d]);
  }
}

std::string PlannedDevices::name(int i) const {
  const std::string name = (*this)[i].name();
  if (groups_.size() == 1) return name;
  size_t process = 0;
  for (int before = groups_[0]->size(); before <= i; before += groups_[process]->size()) ++process;
  return fmt::format("rank {} {}", process, name);
}

std::vector<DevicePlan> PlannedDevices::plan(const Model& model, const EngineConfig& config, const Workload& workload,
                                             PlanDetail detail) const {
  std::vector<DevicePlan> all;
  for (const DeviceGroup* const group : groups_) {
    for (DevicePlan& plan : plan_memory(model, *group, config, workload, detail)) all.push_back(std::move(plan));
  }
  return all;
}

PlanSearch::PlanSearch(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload)
    : model_(model),
      devices_(devices),
      planned_(std::make_shared<const PlannedDevices>(devices)),
      config_(std::move(config)),
      workload_(std::move(workload)) {}

PlanSearch PlanSearch::with(EngineConfig config) const {
  PlanSearch other = *this;
  other.config_ = std::move(config);
  return other;
}

bool PlanSearch::capacity_is_given() const {
  return !devices_.options().memory_bytes.empty() || devices_.target().backend != Backend::cpu;
}

Fit PlanSearch::plan(const EngineConfig& config) const {
  if (workload_.stop && workload_.stop()) throw SearchStopped();
  Fit fit{config, same_size(config, config_) ? workload_ : workload_under(workload_, config), {}, {}, {}};
  validate(model_, devices_, config, fit.workload);
  for (const DeviceGroup* const group : planned_->groups()) {
    std::vector<DevicePlan> plans;
    try {
      EngineConfig sized = config;
      sized.workspace_bytes = full_workspace_bytes(model_, *group, config, fit.workload);
      plans = plan_sized(model_, *group, sized, fit.workload, PlanDetail::peaks, config.workspace_bytes.has_value());
    } catch (const OutOfMemory& error) {
      if (error.shortage().memory == MemoryShortage::Memory::workspace) throw;
      // The plan overflowed; a headroom below any capacity marks it.
      plans.assign(static_cast<size_t>(group->size()), DevicePlan{});
      for (DevicePlan& plan : plans) plan.peak_bytes = DeviceGroup::kUnlimitedBytes + 1;
    }
    for (DevicePlan& plan : plans) fit.plans.push_back(std::move(plan));
  }
  const BatchPlan batch = plan_batch(config.scheme.split, config.batch_size, config.accumulate, devices_.world_size());
  for (int d = 0; d < planned_->size(); ++d) {
    fit.headroom.push_back((*planned_)[d].pool().capacity_bytes() - fit.plans[static_cast<size_t>(d)].peak_bytes);
    fit.slices.push_back(batch.largest_slice(planned_->rank(d)));
  }
  return fit;
}

Fit PlanSearch::even_split(const EngineConfig& config) const {
  // This process does not choose the shares of other processes' devices.
  if (devices_.process_count() > 1) return plan(config);
  const auto count = static_cast<size_t>(devices_.size());
  const int64_t samples = (config.batch_size + config.accumulate - 1) / config.accumulate;
  const auto with = [&](const std::vector<int64_t>& slices) { return plan(with_slices(config, slices)); };
  Fit best = with(equal_parts(samples, devices_.size()));
  if (count == 1 || samples < 2 || best.fits()) return best;

  // A second point of each device's line: every other one gives up half of its samples to the next.
  std::vector<int64_t> skewed = best.slices;
  for (size_t d = 0; d + 1 < count; d += 2) {
    const int64_t moved = std::max<int64_t>(1, skewed[d] / 2);
    skewed[d] -= moved;
    skewed[d + 1] += moved;
  }
  if (count % 2 == 1 && count > 1) {
    const int64_t moved = std::min<int64_t>(skewed[0], std::max<int64_t>(1, skewed[count - 1] / 2));
    skewed[0] -= moved;
    skewed[count - 1] += moved;
  }
  const Fit other = with(skewed);
  std::vector<Line> lines(count);
  std::vector<double> capacities(count);
  double each_of_any = 1;
  for (size_t d = 0; d < count; ++d) {
    const int64_t step = other.slices[d] - best.slices[d];
    if (step != 0)
      lines[d].each =
          static_cast<double>(other.plans[d].peak_bytes - best.plans[d].peak_bytes) / static_cast<double>(step);
    each_of_any = std::max(each_of_any, lines[d].each);
  }
  for (size_t d = 0; d < count; ++d) {
    if (lines[d].each < 1) lines[d].each = each_of_any;  // its peak does not depend on its slice
    lines[d].fixed =
        static_cast<double>(best.plans[d].peak_bytes) - lines[d].each * static_cast<double>(best.slices[d]);
    capacities[d] = static_cast<double>(devices_[static_cast<int>(d)].pool().capacity_bytes());
  }
  for (Fit fit : {with(equalize_headroom(lines, capacities, samples)), other}) {
    if (fit.tightest() > best.tightest()) best = std::move(fit);
  }
  // Then by single samples, from the tightest device to the one with the most room.
  for (size_t i = 0; i < 4 * count + 16; ++i) {
    const auto from = static_cast<size_t>(std::ranges::min_element(best.headroom) - best.headroom.begin());
    const auto to = static_cast<size_t>(std::ranges::max_element(best.headroom) - best.headroom.begin());
    std::vector<int64_t> slices = best.slices;
    if (from == to || slices[from] == 0) break;
    --slices[from];
    ++slices[to];
    Fit next = with(slices);
    if (next.tightest() <= best.tightest()) break;
    best = std::move(next);
  }
  return best;
}

Fit PlanSearch::nearest_to_equal(const EngineConfig& config) const {
  Fit nearest = even_split(config);
  if (!nearest.fits() || devices_.process_count() > 1) return nearest;
  const std::vector<double> even = nearest.config.scheme.split.weights;
  const auto samples = static_cast<int64_t>(std::accumulate(even.begin(), even.end(), 0.0));
  const std::vector<int64_t> equal = equal_parts(samples, devices_.size());
  if (std::equal(even.begin(), even.end(), equal.begin())) return nearest;
  double fails = 0, fits = 1;  // shares of the way from equal slices to even ones
  while ((fits - fails) * static_cast<double>(samples) > 1) {
    const double middle = (fails + fits) / 2;
    std::vector<double> shares;
    for (size_t d = 0; d < even.size(); ++d)
      shares.push_back(std::lerp(static_cast<double>(equal[d]), even[d], middle));
    std::optional<Fit> fit;
    try {
      fit = plan(with_slices(config, weighted_parts(samples, shares)));
    } catch (const ShapeError&) {  // batch norm needs more than one value
    }
    const bool good = fit && fit->fits();
    (good ? fits : fails) = middle;
    if (good) nearest = std::move(*fit);
  }
  return nearest;
}

std::optional<Fit> PlanSearch::candidate(const EngineConfig& config, SearchSpace space) const {
  try {
    return best_of(config, space);
  } catch (const Error& error) {  // in exact mode a micro-batch may cut leaves that belong together
    if (error.kind() != ErrorKind::shape && !(config.exact() && error.kind() == ErrorKind::config)) throw;
    if (same_size(config, config_)) plan(config);  // throws what is wrong with the configuration itself
    return std::nullopt;
  }
}

Fit PlanSearch::best_of(const EngineConfig& config, SearchSpace space) const {
  const auto with_split = [&](const EngineConfig& changed) {
    Fit fit = plan(changed);
    return space.split && !fit.fits() ? even_split(changed) : fit;
  };
  Fit fit = with_split(config);
  // What is recomputed by name is not searched.
  if (fit.fits() || !space.recompute || !config.recompute.empty()) return fit;
  // More segments recompute more: all but the last one.
  EngineConfig changed = config;
  const int most = most_segments(*model_.net, model_.input_shape(1));
  for (changed.recompute_segments = 2; changed.recompute_segments <= most && !fit.fits(); ++changed.recompute_segments)
    fit = with_split(changed);
  return fit;
}

std::optional<Fit> PlanSearch::answer(std::optional<Fit> fit, SearchSpace space) const {
  if (!fit || !space.split) return fit;
  return nearest_to_equal(fit->config);
}

std::optional<Fit> PlanSearch::largest_batch(int64_t most, SearchSpace space) const {
  const auto at = [&](int64_t batch) {
    EngineConfig config = config_;
    config.batch_size = batch;
    if (config.scheme.split.kind == Split::Kind::gpu0)
      config.scheme.split.gpu0 = std::min(config.scheme.split.gpu0, batch);
    return candidate(config, space);
  };
  int64_t fitting = config_.accumulate - 1,
          failing = most + 1;  // bounds: the largest size known to fit, the smallest known not to
  std::optional<Fit> best;
  for (int64_t step = 1; fitting + 1 < failing; step *= 2) {
    const int64_t batch = std::min(fitting + step, failing - 1);
    std::optional<Fit> fit = at(batch);
    if (fit && !fit->fits()) {
      failing = batch;
      break;
    }
    fitting = batch;
    if (fit) best = std::move(fit);
  }
  while (fitting + 1 < failing) {
    const int64_t batch = fitting + (failing - fitting) / 2;
    std::optional<Fit> fit = at(batch);
    if (fit && !fit->fits()) {
      failing = batch;
    } else {
      fitting = batch;
      if (fit) best = std::move(fit);
    }
  }
  for (int64_t batch = failing + 1; batch <= std::min(most, failing + kBatchesBeyond); ++batch) {
    std::optional<Fit> fit = at(batch);
    if (fit && fit->fits()) best = std::move(fit);
  }
  return answer(std::move(best), space);
}

std::optional<Fit> PlanSearch::as_it_is(SearchSpace space) const {
  std::optional<Fit> fit = candidate(config_, space);
  if (!fit || !fit->fits()) return std::nullopt;
  return answer(std::move(fit), space);
}

std::optional<Fit> PlanSearch::fewest_micro_batches(SearchSpace space) const {
  // The numbers of micro-batches that make the largest one smaller, each with the fewest that do.
  std::vector<int> counts;
  const int64_t least = config_.update_in_backward ? config_.batch_size : 1;
  for (int64_t size = config_.batch_size; size >= least;) {
    const int64_t count = (config_.batch_size + size - 1) / size;
    counts.push_back(static_cast<int>(count));
    size = std::min(size - 1, (config_.batch_size + count) / (count + 1));
  }
  std::optional<Fit> best;
  size_t failing = 0, fitting = counts.size();  // counts before the first do not fit, those from the second on do
  while (failing < fitting) {
    const size_t middle = failing + (fitting - failing) / 2;
    EngineConfig config = config_;
    config.accumulate = counts[middle];
    std::optional<Fit> fit = candidate(config, space);
    if (fit && !fit->fits()) {
      failing = middle + 1;
    } else {
      fitting = middle;
      if (fit) best = std::move(fit);
    }
  }
  return answer(std::move(best), space);
}

std::vector<std::string> PlanSearch::arithmetic(const Fit& fit) const {
  EngineConfig half = fit.config;
  half.batch_size = std::max<int64_t>(half.accumulate, half.batch_size / 2);
  if (half.scheme.split.kind == Split::Kind::gpu0) half.scheme.split.gpu0 /= 2;
  // A model that cannot train on half as many samples (batch norm of one value) has no second point.
  const Fit smaller = candidate(half, {}).value_or(fit);
  std::vector<std::string> lines;
  std::set<std::string> known;
  for (size_t d = 0; d < fit.plans.size(); ++d) {
    const int64_t peak = fit.plans[d].peak_bytes, samples = fit.slices[d], step = samples - smaller.slices[d];
    const int64_t each = step > 0 ? (peak - smaller.plans[d].peak_bytes) / step : 0;
    const Device& device = (*planned_)[static_cast<int>(d)];
    // With one sample, or a peak that does not depend on the slice, there is no line.
    const std::string terms = each > 0 ? fmt::format("{} + {} sample{} x {} = ", format_bytes(peak - samples * each),
                                                     samples, samples == 1 ? "" : "s", format_bytes(each))
                                       : std::string();
    std::string line = fmt::format(": {}{}", terms, format_bytes(peak));
    const int64_t capacity = device.pool().capacity_bytes();
    if (capacity != DeviceGroup::kUnlimitedBytes) {
      line += fmt::format(" of {}, {} {}", format_bytes(capacity), format_bytes(std::abs(fit.headroom[d])),
                          fit.headroom[d] < 0 ? "too much" : "free");
    }
    if (known.insert(line).second || planned_->groups().size() == 1)
      lines.push_back(planned_->name(static_cast<int>(d)) + line);
  }
  return lines;
}

}  // namespace vitrine
