// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/ranges.h>

#include "nn/parallel/plan/movement_plan.h"
#include "nn/parallel/plan/plan_search.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/units.h"
#include "tools/program/choose/choose.h"
#include "tools/program/flags/advice.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/run/batches.h"

namespace vitrine::tools {

namespace {

constexpr int kRounds = 2;  // the faster one counts

struct Candidate {
  std::string mode;
  EngineConfig config;
  int64_t bytes = 0;  // that collectives move in a step through the link of the busiest device
  double seconds = 0;
};

/// Seconds of a step, in which nothing is trained that stays.
double measure_step(const Options& options, const Job& job, const EngineConfig& config,
                    std::unique_ptr<DeviceGroup>& devices) {
  Workload workload;
  workload.train_batches = {config.batch_size};
  Run run = open_run(std::move(devices), job, config, workload, {});
  double seconds = 0;
  {
    BatchSource source(job.data.train, train_loader_config(options, job, run, kWarmSteps + kMeasuredSteps));
    int64_t begin = 0, done = 0;
    for (int64_t step = 0; done < kWarmSteps + kMeasuredSteps && !interrupted(); ++step) {
      const auto item = source.next(step);
      VITRINE_ASSERT(item.has_value(), "an epoch has a full batch, and there is one for each step");
      if (item->labels.shape[0] != config.batch_size) continue;
      run.engine->train_step(*item);
      if (++done != kWarmSteps) continue;
      run.engine->take_step_results(true);
      begin = steady_now_ns();
    }
    run.engine->take_step_results(true);
    seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9 / kMeasuredSteps;
  }
  run.engine.reset();
  devices = std::move(run.devices);
  return seconds;
}

/// The presets that the configuration allows, those with fewer bytes first; the notes say what does not fit.
std::vector<Candidate> candidates_that_fit(const Options& options, const Job& job, DeviceGroup& devices,
                                           std::vector<std::string>& notes) {
  std::vector<Candidate> fitting;
  for (const std::string& mode : scheme_names()) {
    if (scheme_preset(mode).split.kind == Split::Kind::gpu0) continue;  // dp with another split
    Options one = options;
    one.mode = mode;
    try {
      const Scheme scheme = resolve_scheme(one, resolve_devices(one, cuda_device_count()), devices.world_size());
      Candidate candidate{mode, engine_config(one, job, scheme, resolve_precision(one))};
      const Workload workload = train_workload(one, job, one.steps, one.evaluate);
      const PlanSearch search(job.model, devices, candidate.config, workload);
      const Fit fit = search.plan(candidate.config);
      if (!fit.fits()) {
        const size_t device = static_cast<size_t>(std::ranges::min_element(fit.headroom) - fit.headroom.begin());
        const int64_t needed = fit.plans[device].peak_bytes;
        notes.push_back(fmt::format("  {}: does not fit: {} of {}, {} missing", mode, format_bytes(needed),
                                    format_bytes(needed + fit.headroom[device]), format_bytes(-fit.headroom[device])));
        continue;
      }
      EngineConfig sized = candidate.config;
      sized.workspace_bytes = fit.plans.front().workspace.bytes;
      for (const DeviceGroup* const group : search.planned().groups())
        candidate.bytes = std::max(candidate.bytes, most_moved(plan_movement(job.model, *group, sized, workload)));
      fitting.push_back(std::move(candidate));
    } catch (const ConfigError& error) {
      notes.push_back(fmt::format("  {}: not possible: {}", mode, in_program_words(error)));
    }
  }
  // Of equal ones the first is taken, that with the least sharding.
  std::ranges::stable_sort(fitting, std::less(), &Candidate::bytes);
  return fitting;
}

}  // namespace

Chosen choose_mode(const Options& asked, const Job& job, DeviceGroup& planned, std::unique_ptr<DeviceGroup>* devices) {
  Chosen chosen{asked, {}};
  Options& options = chosen.options;
  if (!std::exchange(options.choices.mode, false)) return chosen;
  if (planned.process_group() != nullptr) {
    throw ConfigError(
        "--mode auto: a process knows the memory of its own devices only; find the mode with vitrine plan --processes "
        "N, and give it");
  }
  require_capacities("--mode auto", planned);
  std::vector<std::string> others;
  std::vector<Candidate> fitting = candidates_that_fit(options, job, planned, others);
  if (fitting.empty()) {
    throw OutOfMemory(
        fmt::format("--mode auto: no mode fits.\n{}\nGive one, and vitrine plan says what it lacks and what would fit",
                    fmt::join(others, "\n")));
  }
  const bool alone = planned.world_size() == 1;
  const bool measures =
      devices != nullptr && !alone && fitting.size() > 1 && options.batch_size <= job.data.train.size();
  for (int round = 0; measures && round < kRounds; ++round) {
    for (Candidate& candidate : fitting) {
      if (interrupted()) return chosen;
      const double seconds = measure_step(options, job, candidate.config, *devices);
      candidate.seconds = round == 0 ? seconds : std::min(candidate.seconds, seconds);
    }
  }
  double fastest = fitting.front().seconds;
  for (const Candidate& candidate : fitting) fastest = std::min(fastest, candidate.seconds);
  const auto best = std::ranges::find_if(
      fitting, [&](const Candidate& candidate) { return candidate.seconds * (1 - kLeastGain) <= fastest; });
  options.mode = best->mode;
  const std::string why =
      alone      ? "on one device all modes are alike"
      : measures ? fmt::format("the fastest of those that fit, measured; differences below {:.0f} % do not count",
                               kLeastGain * 100)
                 : "the first that fits, in the order of the bytes that they move";
  chosen.notes.push_back(fmt::format("--mode auto: --mode {}, {}:", best->mode, why));
  for (const Candidate& candidate : fitting) {
    if (alone) break;
    chosen.notes.push_back(fmt::format(
        "  {}: moves {} a step through the busiest device's link{}", candidate.mode, format_bytes(candidate.bytes),
        measures ? fmt::format(", {} a step", format_seconds(candidate.seconds)) : std::string()));
  }
  chosen.notes.insert(chosen.notes.end(), others.begin(), others.end());
  return chosen;
}

}  // namespace vitrine::tools
