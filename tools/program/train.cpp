// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "data/sampler.h"
#include "kernels/conv2d_choice.h"
#include "runtime/error.h"
#include "tools/program/attempts.h"
#include "tools/program/balance.h"
#include "tools/program/batches.h"
#include "tools/program/choose.h"
#include "tools/program/commands.h"
#include "tools/program/describe.h"
#include "tools/program/evaluate.h"
#include "tools/program/interrupt.h"
#include "tools/program/json_report.h"
#include "tools/program/measure.h"
#include "tools/program/output_file.h"
#include "tools/program/progress.h"
#include "tools/program/recorded_steps.h"
#include "tools/program/report/page.h"
#include "tools/program/run_log.h"
#include "tools/program/run_record.h"
#include "tools/program/save.h"
#include "tools/program/tables.h"
#include "tools/program/terminal_report.h"
#include "tools/program/trace_file.h"
#include "tools/program/warnings.h"

namespace vitrine::tools {

namespace {

class Training {
 public:
  /// log  receives each step and epoch
  Training(const Options& options, const Job& job, Run& run, RunLog& log)
      : options_(options),
        job_(job),
        run_(run),
        engine_(*run.engine),
        steps_per_epoch_(batches_per_epoch({options.shuffle, options.drop_last, options.seed}, job.data.train.size(), options.batch_size)),
        epoch_count_(options.steps ? (*options.steps + steps_per_epoch_ - 1) / steps_per_epoch_ : options.epochs.value_or(1)),
        total_steps_(options.steps.value_or(epoch_count_ * steps_per_epoch_)),
        first_step_(engine_.steps_issued()),
        schedule_(resolve_schedule(options.schedule, total_steps_, options.evaluate && !options.steps), engine_.config().optimizer.learning_rate(),
                  steps_per_epoch_),
        log_(log),
        source_(job.data.train, train_loader_config(options, job, run, epoch_count_)),
        recorded_(options, total_steps_),
        recorder_(run, recorded_.spans()),
        record_() {
    record_.precision = engine_.config().precision;
  }

  /// Trains to the end, until interrupted, or until training diverges.
  void run() {
    try {
      run_epochs();
    } catch (const DivergedError& error) {
      diverged_ = error.what();
      for (const StepResult& totals : engine_.take_step_results(false)) add_step(totals);
      if (epochs_.back().seconds == 0) epochs_.pop_back();
      run_.devices->synchronize();
      recorder_.collect(source_.take_spans(), first_step_ + 1);
    }
  }

  /// Called when all steps are done.
  void end() {
    if (engine_.config().precision.loss_scaling.active()) record_.end(engine_.loss_scale_state().first);
  }

  /// Whether training stopped early, in all processes at the same step.
  bool stopped() const { return stopped_; }
  /// Why training stopped at a value that is not finite; empty if it did not. The engine holds the last finite parameters.
  const std::string& diverged() const { return diverged_; }
  const std::vector<double>& step_losses() const { return step_losses_; }
  const std::vector<EpochRecord>& epochs() const { return epochs_; }
  const PhaseRecorder& recorder() const { return recorder_; }
  const RecordedSteps& recorded() const { return recorded_; }
  const StepRecord& record() const { return record_; }

 private:
  void run_epochs() {
    for (int64_t epoch = 1; epoch <= epoch_count_ && !stopped_; ++epoch) {
      // With --steps there is one result for all epochs.
      if (!options_.steps || epochs_.empty()) epochs_.emplace_back().epoch = epoch;
      train_epoch(epoch, epochs_.back());
      const bool ends_here = !options_.steps || epoch == epoch_count_;
      if (ends_here && options_.evaluate && !stopped_) {
        const std::optional<Evaluation> test = evaluate_test_set(options_, job_, run_, "evaluating");
        stopped_ = !test.has_value();
        if (test) epochs_.back().test_loss = test->loss, epochs_.back().test_accuracy = test->accuracy;
        recorder_.discard();
      }
      if (epochs_.back().test_loss)
        schedule_.end_epoch(options_.schedule.metric == "loss" ? *epochs_.back().test_loss : *epochs_.back().test_accuracy);
      if (ends_here || stopped_) {
        log_epoch(epochs_.back());
        print_epoch(epochs_.back());
      }
    }
  }

  void add_step(const StepResult& totals) {
    log_.add_step({static_cast<int64_t>(step_losses_.size()) + 1, totals.mean_loss(), rates_[step_losses_.size()],
                   engine_.config().precision.loss_scaling.active() ? std::optional(totals.loss_scale) : std::nullopt});
    step_losses_.push_back(totals.mean_loss());
    record_.add(totals);
  }

  void train_epoch(int64_t epoch, EpochRecord& result) {
    const int64_t steps = std::min(steps_per_epoch_, total_steps_ - (epoch - 1) * steps_per_epoch_);
    Progress progress(epoch_count_ > 1 ? fmt::format("epoch {}/{}", epoch, epoch_count_) : "training", steps, {options_.quiet, options_.log_every});
    result.steps_wanted = options_.steps.value_or(steps);
    const int64_t begin = steady_now_ns();
    StepResult done;
    int64_t steps_done = 0;
    const auto take_totals = [&](bool wait) {
      for (const StepResult& totals : engine_.take_step_results(wait)) {
        add_step(totals);
        done.loss_sum += totals.loss_sum;
        done.valid += totals.valid;
        stopped_ = stopped_ || totals.stop_votes > 0;
        ++result.steps;
        progress.update(++steps_done, done.valid, done.mean_loss());
      }
    };
    const bool alone = run_.devices->process_count() == 1;
    for (int64_t step = 0; step < steps && !stopped_; ++step) {
      if (interrupted()) {
        // Several processes end after the same step: the one whose result carries the vote.
        if (stopped_ = alone; stopped_) break;
        engine_.vote_to_stop();
      }
      const auto item = source_.next(engine_.steps_issued());
      VITRINE_ASSERT(item.has_value(), "the loader ended before the epochs it was made for");
      recorded_.before_step(*run_.devices, engine_.steps_issued());
      set_learning_rate();
      engine_.train_step(*item);
      result.samples += item->global_samples;
      take_totals(false);
      if (engine_.steps_issued() % PhaseRecorder::kStepsBetweenPolls == 0) recorder_.poll(source_.take_spans(), first_step_ + 1);
      if (options_.verify_replicas > 0 && engine_.steps_issued() % options_.verify_replicas == 0) engine_.verify_replicas();
    }
    take_totals(true);
    result.seconds += static_cast<double>(steady_now_ns() - begin) * 1e-9;
    result.totals.loss_sum += done.loss_sum;
    result.totals.valid += done.valid;
    recorder_.collect(source_.take_spans(), first_step_ + 1);
  }

  void set_learning_rate() {
    const ScheduledValues values = schedule_.at(engine_.steps_issued() - first_step_);
    engine_.set_learning_rate(values.lr);
    if (values.momentum) engine_.set_momentum(*values.momentum);
    rates_.push_back(values.lr);
  }

  void log_epoch(const EpochRecord& result) {
    RunLog::Epoch epoch{static_cast<int64_t>(step_losses_.size()), result.samples_per_second(), {}, {}};
    epoch.test_loss = result.test_loss, epoch.test_accuracy = result.test_accuracy;
    for (int d = 0; d < run_.devices->size(); ++d) {
      Device& device = (*run_.devices)[d];
      log_.add_memory(device.name(), epoch.step, device.pool().statistics());
    }
    log_.add_epoch(epoch);
  }

  void print_epoch(const EpochRecord& result) const {
    if (options_.json && options_.quiet) return;  // only rank 0 prints on stderr
    std::string line = options_.steps ? fmt::format("{} step{}", step_losses_.size(), step_losses_.size() == 1 ? "" : "s")
                                      : fmt::format("epoch {}/{}", result.epoch, epoch_count_);
    if (!result.whole()) line += fmt::format(" (interrupted after {} of {} steps)", result.steps, result.steps_wanted);
    if (result.steps > 0) line += fmt::format("  train loss {:.4f}", result.totals.mean_loss());
    if (result.test_loss) line += fmt::format("  test loss {:.4f}  test accuracy {:.4f}", *result.test_loss, *result.test_accuracy);
    line += fmt::format("  {} samples/s", format_count(std::llround(result.samples_per_second())));
    fmt::print(options_.json ? stderr : stdout, "{}\n", line);
    std::fflush(options_.json ? stderr : stdout);
  }

  const Options& options_;
  const Job& job_;
  Run& run_;
  Engine& engine_;
  bool stopped_ = false;
  std::string diverged_;
  int64_t steps_per_epoch_, epoch_count_, total_steps_, first_step_;
  LrSchedule schedule_;
  RunLog& log_;
  std::vector<double> rates_;  // learning rates of the steps issued
  BatchSource source_;
  RecordedSteps recorded_;
  PhaseRecorder recorder_;
  StepRecord record_;
  std::vector<double> step_losses_;
  std::vector<EpochRecord> epochs_;
};

/// Each process writes its own file: FILE.json, FILE.rank1.json and so on.
std::string path_of_rank(const std::string& path, const Processes& processes) {
  if (path.empty() || processes.leads()) return path;
  const size_t dot = path.rfind('.');
  const bool has_ending = dot != std::string::npos && path.find('/', dot) == std::string::npos;
  const std::string rank = fmt::format(".rank{}", processes.process_group()->rank());
  return has_ending ? path.substr(0, dot) + rank + path.substr(dot) : path + rank;
}

Record make_record(const Options& options, const std::vector<std::string>& notes, const Job& job, const std::vector<DeviceId>& devices,
                   const Processes& processes, Run& run, const Training& training) {
  Record record;
  record.title = fmt::format("{} on {} devices, {}", job.model.name, run.devices->world_size(), options.mode_name());
  record.command_line = command_line(options);
  record.facts = run_facts(options, job, run, options.mode_name());
  for (const std::string& note : notes) record.facts.emplace_back("chosen", note);
  if (!training.epochs().empty() && !training.epochs().back().whole()) {
    const EpochRecord& last = training.epochs().back();
    record.facts.emplace_back("interrupted", fmt::format("epoch {}, after {} of {} steps", last.epoch, last.steps, last.steps_wanted));
  }
  record.config = config_json(options, job, devices, run.devices->world_size()).dump();
  record.notes = notes;
  record.processes = processes.count();
  record.dataset_bytes = dataset_bytes(job.data);
  record.interrupted = training.stopped();
  record.communicator = run.engine->communicator();
  record.convolutions = conv2d_choices((*run.devices)[0].compute());
  RunRecord& of = record.runs.emplace_back(configured_run(options, run.engine->config(), run.engine->batch_plan()));
  of.steps = training.record();
  of.diverged = training.diverged();
  of.step_losses = training.step_losses();
  of.epochs = training.epochs();
  of.devices = measure_devices(run);
  training.recorder().add_to(of.devices);
  if (!options.report.empty()) add_recorded_step(of, run, training.recorder().kept_spans(), training.recorded());
  of.devices = gather_devices(processes, std::move(of.devices));
  return record;
}

}  // namespace

int run_train(const Options& asked, const Processes& processes) {
  // Usage errors before any work.
  const LrScheduleConfig schedule = resolve_schedule(asked.schedule, std::numeric_limits<int64_t>::max(), asked.evaluate && !asked.steps);
  const OptimizerConfig optimizer = resolve_optimizer(asked);
  if (schedule.kind == LrScheduleConfig::Kind::one_cycle && optimizer.kind == OptimizerConfig::Kind::sgd && optimizer.sgd.momentum == 0.0) {
    throw ConfigError(
        "--lr-schedule one-cycle changes the momentum, which sgd does not have without --momentum; give one, for example --momentum 0.9");
  }
  const std::vector<DeviceId> devices = resolve_devices(asked, cuda_device_count());
  if (processes.leads()) {
    check_writable("--save", asked.save);
    check_writable("--report", asked.report);
  }
  const std::string trace = path_of_rank(asked.trace, processes), memory_history = path_of_rank(asked.memory_history, processes);
  check_writable("--trace", trace);
  check_writable("--memory-history", memory_history);
  auto group = std::make_unique<DeviceGroup>(device_group_options(asked, devices, processes.process_group()));
  resolve_scheme(asked, devices, group->world_size());
  print_device_warnings(asked, *group);
  const Job job = open_job(asked);
  if (!asked.choices.batch_size) print_warnings(asked, batch_warnings(asked, job));
  Chosen chosen = choose_by_plan(asked, job, *group);
  if (asked.choices.split && asked.balance == "time") balance_by_time(chosen, job, group);
  for (const std::string& note : chosen.notes) fmt::print(asked.json ? stderr : stdout, "{}\n", note);
  const Options& options = chosen.options;
  const Scheme scheme = resolve_scheme(options, devices, group->world_size());
  if (processes.process_group()) agree_on_run(options, job, *processes.process_group());
  Run run = open_run(std::move(group), job, engine_config(options, job, scheme, resolve_precision(options)),
                     train_workload(options, job, options.steps, options.evaluate), {options.init_weights, options.allow_non_finite},
                     RecordedSteps::all(options));
  if (!options.json) fmt::print("{}\n", describe_run(options, job, run, options.mode_name()));
  std::fflush(stdout);

  RunLog log(processes.leads() ? options.tensorboard : std::string(), run_facts(options, job, run, options.mode_name()));
  Training training(options, job, run, log);
  try {
    training.run();
  } catch (...) {
    rescue_weights(options, job.model.name, *run.engine, processes);
    throw;
  }
  // A failure here does not prevent the rest; the weights come first.
  Attempts attempts;
  std::string files;
  const bool saved = attempts.run([&] { save_weights(options, job.model.name, *run.engine, processes); });
  if (saved && !options.save.empty()) {
    files += fmt::format("\nThe {}weights are in {}\n", training.diverged().empty() ? "" : "last finite ", options.save);
  }
  attempts.run([&] { log.close(); });
  attempts.run([&] {
    training.end();
    run.engine->finish();
    if (options.verify_replicas > 0) run.engine->verify_replicas();
  });
  if (!trace.empty()) attempts.run([&] { write_trace_file(trace, *run.devices, training.recorder().kept_spans()); });
  if (!memory_history.empty()) attempts.run([&] { write_memory_history(memory_history, *run.devices, training.recorded()); });
  attempts.run([&] {
    const Record record = make_record(options, chosen.notes, job, devices, processes, run, training);
    if (!options.report.empty() && processes.leads() && attempts.run([&] { html::write_page(options.report, record); })) {
      files += fmt::format("\nThe report is in {}\n", options.report);
    }
    if (options.json) {
      print_json(run_json(record));
    } else {
      fmt::print("{}{}", run_report(record, Style::of(STDOUT_FILENO)), files);
    }
  });
  attempts.rethrow();
  if (!training.diverged().empty()) {
    if (processes.leads()) {
      fmt::print(stderr, "vitrine: {}: --lr, --clip-norm, --precision; --allow-non-finite trains on with NaN\n", training.diverged());
    }
    return kExitFailure;
  }
  return training.stopped() ? kExitInterrupted : kExitOk;
}

}  // namespace vitrine::tools
