// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "nn/parallel/plan/plan_search.h"
#include "nn/parallel/plan/time_balance.h"
#include "runtime/error.h"
#include "runtime/units.h"
#include "tools/program/choose/choose.h"
#include "tools/program/collectives/bench.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/run/batches.h"
#include "tools/program/run/measure.h"

namespace vitrine::tools {

namespace {

constexpr int kMostChanges = 4;
constexpr int kRepeats = 3;  // of each candidate, alternating
// The phases that a device spends on its own samples; in the others it shares work or waits.
constexpr std::array kOwnWork = {Phase::preprocess, Phase::forward, Phase::loss, Phase::backward, Phase::recompute};

class TimeBalance {
 public:
  TimeBalance(const Options& options, const Job& job, std::unique_ptr<DeviceGroup>& devices)
      : options_(options), job_(job), devices_(devices), measured_(static_cast<size_t>(devices->size())) {}

  /// Seconds that the slowest device takes for a step.
  double measure(const EngineConfig& config) {
    Options sized = options_;
    sized.batch_size = config.batch_size;
    Workload workload;
    workload.train_batches = {config.batch_size};
    Run run = open_run(std::move(devices_), job_, config, workload, {});
    const BatchPlan plan = run.engine->facts().batch;
    {
      BatchSource source(job_.data.train, train_loader_config(sized, job_, run, kWarmSteps + kMeasuredSteps));
      PhaseRecorder recorder(run);
      for (int64_t step = 0; step < kWarmSteps + kMeasuredSteps && !interrupted(); ++step) {
        const auto item = source.next(step);
        VITRINE_ASSERT(item.has_value(), "an epoch has a batch, and there is one for each step");
        if (item->labels.shape[0] == config.batch_size) run.engine->train_step(*item);
      }
      run.engine->take_step_results(true);
      recorder.collect({}, kWarmSteps);
      book(recorder.tables(), plan);
    }
    run.engine.reset();
    devices_ = std::move(run.devices);
    double slowest = 0;
    for (const std::vector<SliceMeasurement>& m : measured_) slowest = std::max(slowest, m.back().seconds);
    return slowest;
  }

  std::vector<SliceTime> times() const {
    std::vector<SliceTime> times;
    // A device that has no memory for samples cannot be measured: it counts as fast as the others on average.
    std::vector<SliceMeasurement> all;
    for (const std::vector<SliceMeasurement>& m : measured_) all.insert(all.end(), m.begin(), m.end());
    for (const std::vector<SliceMeasurement>& m : measured_) {
      const bool worked = std::any_of(m.begin(), m.end(), [](const SliceMeasurement& one) { return one.samples > 0; });
      times.push_back(fit_slice_time(worked ? m : all));
    }
    return times;
  }

 private:
  void book(const std::vector<PhaseTable>& tables, const BatchPlan& plan) {
    for (size_t d = 0; d < tables.size(); ++d) {
      measured_[d].push_back(
          {plan.device_samples(static_cast<int>(d)), per_step(seconds_in(tables[d], kOwnWork), tables[d])});
    }
  }

  const Options& options_;
  const Job& job_;
  std::unique_ptr<DeviceGroup>& devices_;
  std::vector<std::vector<SliceMeasurement>> measured_;
};

/// Samples of each device in a step under the split that leaves most memory.
std::vector<int64_t> even_slices(const PlanSearch& search, const EngineConfig& config) {
  const Fit even = search.even_split(config);
  const auto count = static_cast<int>(even.slices.size());
  const BatchPlan plan = plan_batch(even.config.scheme.split, config.batch_size, config.accumulate, count);
  std::vector<int64_t> slices;
  for (int d = 0; d < count; ++d) slices.push_back(plan.device_samples(d));
  return slices;
}

/// The fastest slices whose plan fits.
std::vector<int64_t> fastest_that_fit(const PlanSearch& search, const EngineConfig& config,
                                      const std::vector<SliceTime>& times, int64_t samples) {
  std::vector<int64_t> most(times.size(), samples);
  while (true) {
    std::vector<int64_t> slices = balance_time(times, samples, most);
    const Fit fit = search.plan(with_slices(config, slices));
    if (fit.fits()) return slices;
    bool lowered = false;
    for (size_t d = 0; d < slices.size(); ++d) {
      if (fit.headroom[d] >= 0 || slices[d] == 0) continue;
      most[d] = slices[d] - std::max<int64_t>(1, slices[d] / 32);
      lowered = true;
    }
    int64_t room = 0;
    for (const int64_t m : most) room += m;
    if (!lowered || room < samples) return even_slices(search, config);
  }
}

std::string describe(const std::vector<SliceTime>& times, DeviceGroup& devices) {
  std::vector<std::string> parts;
  for (size_t d = 0; d < times.size(); ++d) {
    parts.push_back(fmt::format("{} {} + {} a sample", devices[static_cast<int>(d)].name(),
                                format_seconds(times[d].fixed), format_seconds(times[d].each)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

void balance_by_time(Chosen& chosen, const Job& job, std::unique_ptr<DeviceGroup>& devices) {
  Options& options = chosen.options;
  if (resolve_trace_level(options) == TraceLevel::off)
    throw ConfigError("--balance time measures phases, but --trace-level is off; use phase");
  const Scheme scheme = resolve_scheme(options, resolve_devices(options, cuda_device_count()), devices->world_size());
  EngineConfig config = engine_config(options, job, scheme, resolve_precision(options));
  options.choices = Choices{};
  const int64_t samples = config.batch_size, half_batch = samples / 2;
  const auto stays = [&](const std::string& why) {
    chosen.notes.push_back(fmt::format("--balance time: {}; the equal split stays", why));
  };
  if (devices->size() == 1) return stays("there is one device");
  if (samples > job.data.train.size())
    return stays(
        fmt::format("no step has a full batch of {}, the training set has {}", samples, job.data.train.size()));
  if (half_batch / config.accumulate < devices->size()) {
    return stays(fmt::format("half a micro-batch has fewer samples ({}) than devices ({})",
                             half_batch / config.accumulate, devices->size()));
  }
  std::vector<int64_t> slices = equal_parts(samples, devices->size());
  if (PlanSearch search(job.model, *devices, config, train_workload(options, job, options.steps, options.evaluate));
      !search.plan(with_slices(config, slices)).fits()) {
    slices = even_slices(search, config);
  }
  TimeBalance balance(options, job, devices);
  // Half of the batch is the second point of each device's line.
  EngineConfig half = with_slices(config, slices);
  half.batch_size = half_batch;
  balance.measure(half);
  double seconds = balance.measure(with_slices(config, slices));
  if (interrupted()) return;
  chosen.notes.push_back(fmt::format("--balance time: {} samples as {} take {}", samples, fmt::join(slices, "+"),
                                     format_seconds(seconds)));
  for (int change = 0; change < kMostChanges && !interrupted(); ++change) {
    const std::vector<SliceTime> times = balance.times();
    const PlanSearch search(job.model, *devices, config, train_workload(options, job, options.steps, options.evaluate));
    const std::vector<int64_t> next = fastest_that_fit(search, config, times, samples);
    const double predicted = longest_time(times, next);
    chosen.notes.push_back(fmt::format("  fitted: {}", describe(times, *devices)));
    if (next == slices || predicted > seconds * (1 - kLeastGain)) {
      chosen.notes.push_back(
          fmt::format("  {} stays: {} would take {}, and changes that save less than {:.0f} % are skipped",
                      fmt::join(slices, "+"), fmt::join(next, "+"), format_seconds(predicted), kLeastGain * 100));
      break;
    }
    std::vector<double> before = {seconds}, after;
    for (int repeat = 0; repeat < kRepeats && !interrupted(); ++repeat) {
      after.push_back(balance.measure(with_slices(config, next)));
      if (repeat + 1 < kRepeats) before.push_back(balance.measure(with_slices(config, slices)));
    }
    if (interrupted()) return;
    const double found = percentile(after, 50);
    const bool better = *std::max_element(after.begin(), after.end()) < *std::min_element(before.begin(), before.end());
    const bool worse = *std::min_element(after.begin(), after.end()) > *std::max_element(before.begin(), before.end());
    chosen.notes.push_back(fmt::format("  changed to {}: {} predicted, {} measured, {} before{}", fmt::join(next, "+"),
                                       format_seconds(predicted), format_seconds(found),
                                       format_seconds(percentile(before, 50)),
                                       better  ? ""
                                       : worse ? fmt::format("; back to {}", fmt::join(slices, "+"))
                                               : fmt::format("; within noise, so {} stays", fmt::join(slices, "+"))));
    if (!better) break;
    slices = next;
    seconds = found;
  }
  options.split = fmt::format("{}", fmt::join(slices, ","));
}

}  // namespace vitrine::tools
