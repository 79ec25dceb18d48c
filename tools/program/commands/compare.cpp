// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "data/sampler.h"
#include "nn/parallel/plan/movement_plan.h"
#include "runtime/error.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/advice.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/process/attempts.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/record/findings.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/batches.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/measure.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/progress.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {
namespace {

constexpr int64_t kDefaultSteps = 6;

/// "5 rounds of 1 step after the first".
std::string describe_rounds(int rounds, int64_t steps) {
  return fmt::format("{} of {} after the first", counted(rounds, "round"), counted(steps, "step"));
}

/// The share of gradients that are 0 and in the reference are not.
double vanished_share(const std::vector<float>& gradients, const std::vector<float>& reference) {
  int64_t vanished = 0, all = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    all += reference[i] != 0.0F;
    vanished += reference[i] != 0.0F && gradients[i] == 0.0F;
  }
  return all == 0 ? 0.0 : static_cast<double>(vanished) / static_cast<double>(all);
}

/// || gradients / loss_scale - reference || / || reference ||
double relative_difference(const std::vector<float>& gradients, double loss_scale,
                           const std::vector<float>& reference) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double wanted = static_cast<double>(reference[i]),
                 delta = static_cast<double>(gradients[i]) / loss_scale - wanted;
    difference += delta * delta;
    norm += wanted * wanted;
  }
  return std::sqrt(difference / norm);
}

class Comparison {
 public:
  Comparison(const Options& options, const Job& job, std::vector<DeviceId> devices)
      : options_(options),
        job_(job),
        devices_(std::move(devices)),
        steps_(options.steps.value_or(kDefaultSteps)),
        epochs_((steps_ - 1) / batches_per_epoch({options.shuffle, options.drop_last, options.seed},
                                                 job.data.train.size(), options.batch_size) +
                1) {}

  /// Computes the gradients of the first step in f32 on one device that has all memory and cores.
  void run_reference() {
    DeviceGroupOptions group = group_options({devices_.front()});
    group.memory_bytes.clear();
    group.threads_per_device.clear();
    Workload workload;
    workload.train_batches = {std::min(options_.batch_size, job_.data.train.size())};
    Run run = open_run(std::make_unique<DeviceGroup>(group), job_,
                       engine_config(options_, job_, scheme_preset("ddp"), {}), workload, initial_weights(options_));
    BatchSource source(job_.data.train, train_loader_config(options_, job_, run, 1));
    take_step(*run.engine, source);
    run.engine->take_step_results(true);
    reference_ = run.engine->parameters().gradients();
  }

  /// Takes out the runs that do not fit the devices, as they are planned.
  std::vector<RunRecord> take_refused(std::vector<RunRecord>& runs) const {
    const auto group = DeviceGroup::planned(group_options(devices_));
    const Workload workload = train_workload(options_, job_, steps_, false);
    std::vector<RunRecord> fitting, refused;
    for (RunRecord& run : runs) {
      const EngineConfig config = engine_config(options_, job_, run.scheme, run.precision);
      RunRecord planned =
          planned_run(options_, job_, config,
                      plan_batch(run.scheme.split, config.batch_size, config.accumulate, group->world_size()),
                      PlannedDevices(*group), plan_memory(job_.model, *group, config, workload));
      planned.name = run.name;
      const bool fits = all_fit(planned.devices);
      (fits ? fitting : refused).push_back(fits ? std::move(run) : std::move(planned));
    }
    runs = std::move(fitting);
    return refused;
  }

  /// throws OutOfMemory: what the run that lacks least would need, and what would fit. balanced comes last, because
  /// what would fit instead of it needs another --split.
  void explain(std::vector<RunRecord>& refused) {
    RunRecord& least = *std::ranges::min_element(refused, {}, [](const RunRecord& run) {
      return std::pair(run.scheme.split.kind == Split::Kind::gpu0, missing_bytes(run.devices));
    });
    try {
      run_round(least);
    } catch (const OutOfMemory& error) {
      throw OutOfMemory(Reason(refused.size() == 1 ? "" : fmt::format("no scheme fits; {}: ", least.name)) +
                            in_words_with_modes(error.reason()),
                        error.shortage());
    }
    if (!interrupted()) throw OutOfMemory(fmt::format("no scheme was planned to fit, but {} does now", least.name));
  }

  /// Runs one round of a scheme and adds its measurements to `result`. False if the program was interrupted.
  bool run_round(RunRecord& result) {
    const Scheme scheme = result.scheme;
    Run run = open_run(std::make_unique<DeviceGroup>(group_options(devices_)), job_,
                       engine_config(options_, job_, scheme, result.precision),
                       train_workload(options_, job_, steps_, false), initial_weights(options_));
    if (!warned_) print_device_warnings(options_, *run.devices);
    warned_ = true;
    for (const std::string& warning : idle_device_warnings(run.engine->facts().batch)) {
      if (idle_warnings_.insert(warning).second) print_warnings(options_, {warning});
    }
    BatchSource source(job_.data.train, train_loader_config(options_, job_, run, epochs_));
    PhaseRecorder recorder(run);
    result.batch = describe_batch(run.engine->facts().batch);

    Progress progress(fmt::format("{}, round {}/{}", result.name, result.rates.rounds.size() + 1, options_.rounds),
                      steps_ - 1, {false, options_.log_every});
    take_step(*run.engine, source);
    const StepResult first = run.engine->take_step_results(true).at(0);
    result.steps.add(first);
    compare_gradients(*run.engine, result, first.loss_scale);
    recorder.discard();
    source.take_spans();

    const int64_t begin = steady_now_ns();
    int64_t samples = 0;
    StepResult done;
    const auto add = [&](const std::vector<StepResult>& finished) {
      for (const StepResult& step : finished) {
        done.add_totals(step);
        result.steps.add(step);
      }
    };
    for (int64_t step = 1; step < steps_; ++step) {
      if (interrupted()) return false;
      samples += take_step(*run.engine, source);
      add(run.engine->take_step_results(false));
      if (step % PhaseRecorder::kStepsBetweenPolls == 0) recorder.poll(source.take_spans(), 0);
      progress.update(step, samples, done.mean_loss());
    }
    add(run.engine->take_step_results(true));
    result.rates.rounds.push_back(static_cast<double>(samples) / (static_cast<double>(steady_now_ns() - begin) * 1e-9));
    recorder.collect(source.take_spans(), 0);
    run.engine->finish();
    std::vector<DeviceRecord> devices = measure_devices(run, {{"dataset", dataset_bytes(job_.data)}});
    for (size_t d = 0; d < result.devices.size(); ++d) {
      devices[d].phases = std::move(result.devices[d].phases);
      devices[d].communication = std::move(result.devices[d].communication);
    }
    recorder.add_to(devices);
    result.devices = std::move(devices);
    if (result.planned_moved_bytes == 0)
      result.planned_moved_bytes = most_moved(
          plan_movement(job_.model, *run.devices, run.engine->config(), train_workload(options_, job_, steps_, false)));
    if (!result.exact_price) result.exact_price = exact_price(options_, job_, run);
    note_cores(result, *run.devices);
    machine_ = machine_facts(*run.devices);
    job_facts_ = describe_job(job_, run.engine->parameters().layout());
    return true;
  }

  /// Adds how each run's devices hold memory over a steady step, which is as planned.
  void add_timelines(std::vector<RunRecord>& runs) const {
    const auto group = DeviceGroup::planned(device_group_options(options_, devices_));
    for (RunRecord& run : runs) {
      const std::vector<DevicePlan> plans =
          plan_memory(job_.model, *group, engine_config(options_, job_, run.scheme, run.precision),
                      train_workload(options_, job_, steps_, false), PlanDetail::layers);
      for (size_t d = 0; d < run.devices.size(); ++d) run.devices[d].memory = steady_step(plans[d]);
    }
  }

  const std::vector<DeviceId>& devices() const { return devices_; }
  int64_t steps() const { return steps_; }
  /// Facts of the last run.
  Facts facts() const {
    Facts facts = {
        {"model and data", job_facts_},
        {"batch", fmt::format("{} per step; {} under each scheme, in turns", counted(options_.batch_size, "sample"),
                              describe_rounds(options_.rounds, steps_ - 1))}};
    facts.insert(facts.end(), machine_.begin(), machine_.end());
    return facts;
  }

 private:
  static int64_t take_step(Engine& engine, BatchSource& source) {
    const auto item = source.next(engine.steps_issued());
    VITRINE_ASSERT(item.has_value(), "the loader ended before the epochs it was made for");
    engine.train_step(*item);
    return item->labels.numel();
  }

  /// With room for a copy of the gradients in host memory.
  DeviceGroupOptions group_options(const std::vector<DeviceId>& devices) const {
    DeviceGroupOptions group = device_group_options(options_, devices);
    group.host_bytes = weight_copies(options_, job_) + gradient_copy(job_);
    return group;
  }

  /// Compares the reduced gradients of all devices that hold them with the reference; the largest figures count.
  void compare_gradients(Engine& engine, RunRecord& result, double loss_scale) const {
    const int holders = result.scheme.reduce == ReducerKind::allreduce ? static_cast<int>(devices_.size()) : 1;
    result.gradient_difference = result.vanished_gradients = 0.0;
    for (int d = 0; d < holders; ++d) {
      const std::vector<float> gradients = engine.parameters().gradients(d);
      result.gradient_difference =
          std::max(result.gradient_difference, relative_difference(gradients, loss_scale, reference_));
      result.vanished_gradients = std::max(result.vanished_gradients, vanished_share(gradients, reference_));
    }
  }

  const Options& options_;
  const Job& job_;
  std::vector<DeviceId> devices_;
  int64_t steps_, epochs_;
  std::vector<float> reference_;
  bool warned_ = false;                  // device warnings are the same under every scheme
  std::set<std::string> idle_warnings_;  // printed
  Facts machine_;
  std::string job_facts_;
};

/// The record of the comparison; `runs` are filled by Comparison::run_round().
///   failed  an error ended it
ComparisonRecord make_record(const Options& options, const Job& job, const Comparison& comparison,
                             std::vector<RunRecord> runs, std::vector<RunRecord> refused, bool failed) {
  ComparisonRecord record;
  record.title = fmt::format("{} on {} devices under each scheme", job.model.name, comparison.devices().size());
  record.command_line = command_line(options);
  record.facts = comparison.facts();
  record.config = config_json({options, job, comparison.devices()});
  record.compared_steps = comparison.steps();
  record.rounds = options.rounds;
  record.interrupted = failed || interrupted();
  record.runs = std::move(runs);
  record.refused = std::move(refused);
  conclude(record);
  return record;
}

}  // namespace

int run_compare(const Options& options) {
  const std::vector<DeviceId> devices = resolve_devices(options, cuda_device_count());
  std::vector<std::string> notes;
  const auto schemes = resolve_compare_schemes(options, devices, notes);
  const auto precisions = resolve_compare_precisions(options);
  device_group_options(options, devices);
  check_writable("--report", options.report);
  const Job job = open_job(options);
  print_warnings(options, batch_warnings(options, job));
  const Style style = Style::of(options.json ? STDERR_FILENO : STDOUT_FILENO);
  for (const std::string& note : notes) fmt::print(options.json ? stderr : stdout, "{}\n", style.prose(note));
  std::fflush(stdout);

  Comparison comparison(options, job, devices);
  comparison.run_reference();
  std::vector<RunRecord> runs;
  for (const auto& [name, scheme] : schemes) {
    for (const auto& [precision_label, precision] : precisions) {
      RunRecord& run = runs.emplace_back(configured_run(options, engine_config(options, job, scheme, precision), {}));
      run.name = precision_label.empty() ? name : fmt::format("{} {}", name, precision_label);
    }
  }
  std::vector<RunRecord> refused = comparison.take_refused(runs);
  if (runs.empty()) comparison.explain(refused);
  // Schemes take turns, one engine at a time, so that a temporary slowdown affects all of them. Every other round runs
  // in reverse order.
  Attempts attempts;
  // What the rounds before an error have measured is reported.
  attempts.run([&] {
    for (int round = 0; round < options.rounds; ++round) {
      for (size_t i = 0; i < runs.size() && !interrupted(); ++i)
        comparison.run_round(runs[round % 2 == 0 ? i : runs.size() - 1 - i]);
    }
  });
  std::erase_if(runs, [](const RunRecord& run) { return run.rates.rounds.empty(); });
  if (attempts.failed() && runs.empty()) attempts.rethrow();
  if (!options.report.empty()) comparison.add_timelines(runs);
  const ComparisonRecord record =
      make_record(options, job, comparison, std::move(runs), std::move(refused), attempts.failed());
  const bool reported = !options.report.empty() && !record.runs.empty() && attempts.run([&] {
    html::write_page(options.report, html::page_of(record, comparison_json(record, devices)));
  });
  if (options.json) {
    print_json(comparison_json(record, devices));
  } else if (!record.runs.empty()) {
    const std::string head =
        fmt::format("{}: {} per step, {}, in turns{}", job.model.name, counted(options.batch_size, "sample"),
                    describe_rounds(options.rounds, record.compared_steps - 1),
                    record.interrupted ? "; " + record.describe_interruption() : "");
    fmt::print("{}\n{}", style.prose(head), comparison_report(record, style));
    if (reported) fmt::print("\n{}\n", style.prose("The report is in " + options.report));
  }
  attempts.rethrow();
  return interrupted() ? interrupt_status() : kExitOk;
}

}  // namespace vitrine::tools
