// SPDX-License-Identifier: Apache-2.0
#include "tools/program/train.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "data/sampler.h"
#include "kernels/conv2d_choice.h"
#include "runtime/error.h"
#include "tools/program/attempts.h"
#include "tools/program/balance.h"
#include "tools/program/batches.h"
#include "tools/program/checkpoints.h"
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
#include "tools/program/resume.h"
#include "tools/program/run_log.h"
#include "tools/program/run_record.h"
#include "tools/program/save.h"
#include "tools/program/tables.h"
#include "tools/program/terminal_report.h"
#include "tools/program/trace_file.h"
#include "tools/program/warnings.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

/// Where a run begins: a place in its epochs, and what it carries from before.
struct Start {
  Start(const RunState* state, int64_t steps_per_epoch, int64_t batch_size) : of_run(state) {
    if (state == nullptr) return;
    epoch = state->epoch;
    const bool whole = state->batch == state->batches_per_epoch;
    const bool same = state->batches_per_epoch == steps_per_epoch && state->batch_size == batch_size;
    // Batches of another size begin with the one that contains the next sample.
    batch = whole ? steps_per_epoch : same ? state->batch : std::min(state->batch * state->batch_size / batch_size, steps_per_epoch);
    shift = epoch * steps_per_epoch + batch - state->step;
  }
  int64_t epoch = 0, batch = 0;
  /// epoch * steps_per_epoch + batch - optimizer steps so far: 0 unless the checkpoint's epochs had another number of steps.
  int64_t shift = 0;
  const RunState* of_run;  // null for a run from the start
};

/// Steps are counted over the whole run; a run that continues from a checkpoint begins at a later one.
class Training {
 public:
  /// log  receives each step and epoch      resumed  where the run continues; nothing for a run from the start
  ///   hooks  what watches the steps
  Training(const Options& options, const Job& job, Run& run, RunLog& log, Checkpoints& checkpoints, const std::optional<Resumed>& resumed,
           const TrainHooks& hooks)
      : options_(options),
        job_(job),
        run_(run),
        engine_(*run.engine),
        steps_per_epoch_(batches_per_epoch({options.shuffle, options.drop_last, options.seed}, job.data.train.size(), options.batch_size)),
        start_(resumed ? &resumed->state : nullptr, steps_per_epoch_, options.batch_size),
        total_places_(options.steps ? *options.steps + start_.shift : options.epochs.value_or(1) * steps_per_epoch_),
        epoch_count_((total_places_ + steps_per_epoch_ - 1) / steps_per_epoch_),
        first_step_(engine_.steps_issued()),
        epoch_(start_.epoch),
        batch_(start_.batch),
        schedule_(resolve_schedule(options.schedule, total_places_, options.evaluate && !options.steps), resolve_optimizer(options).learning_rate(),
                  steps_per_epoch_),
        log_(log),
        checkpoints_(checkpoints),
        hooks_(hooks),
        source_(job.data.train, loader_from(options, job, run, start_, epoch_count_)),
        recorded_(options, first_step_, total_places_ - start_.shift),
        recorder_(run, recorded_.spans()),
        record_() {
    record_.precision = engine_.config().precision;
    record_.first_step = first_step_;
    if (checkpoints.active()) {
      for (const RunSetting& setting : run_settings(options, job, run)) settings_.emplace_back(setting.name, setting.value);
    }
    if (!resumed) return;
    schedule_.restore(resumed->state.schedule);
    saved_ = {start_.epoch, start_.batch};
  }

  /// Trains to the end, until interrupted, or until training diverges.
  void run() {
    try {
      run_epochs();
    } catch (const DivergedError& error) {
      diverged_ = error.what();
      for (const StepResult& totals : engine_.take_step_results(false)) add_step(totals);
      if (!epochs_.empty() && epochs_.back().seconds == epoch_begin_seconds_) epochs_.pop_back();
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
  const std::optional<ConfusionMatrix>& confusion() const { return confusion_; }
  int64_t first_step() const { return first_step_; }

 private:
  static LoaderConfig loader_from(const Options& options, const Job& job, const Run& run, const Start& start, int64_t epoch_count) {
    LoaderConfig config = train_loader_config(options, job, run, std::max<int64_t>(epoch_count - start.epoch, 0));
    config.first_epoch = start.epoch;
    config.first_batch = start.batch;
    return config;
  }

  void run_epochs() {
    while (epoch_ < epoch_count_ && !stopped_) {
      // With --steps there is one result for all epochs.
      if (!options_.steps || epochs_.empty()) begin_result();
      train_epoch(epochs_.back());
      const bool ends_here = !options_.steps || epoch_ + 1 == epoch_count_;
      if (ends_here && options_.evaluate && !stopped_) {
        std::optional<Evaluation> test = evaluate();
        stopped_ = !test.has_value();
        if (test) {
          epochs_.back().test_loss = test->loss, epochs_.back().test_accuracy = test->accuracy, epochs_.back().test_top5 = test->top5;
          confusion_ = std::move(test->confusion);
        }
        recorder_.discard();
      }
      if (!stopped_) end_epoch_of_schedule(epochs_.back());
      if (ends_here || stopped_) {
        log_epoch(epochs_.back());
        print_epoch(epochs_.back());
      }
      if (!stopped_ && !end_epoch()) break;
    }
    // An interrupted run, and a whole one, can be continued from where it ended.
    if (checkpoints_.active() && saved_ != Place{epoch_, batch_} && engine_.steps_issued() > 0) save();
  }

  void end_epoch_of_schedule(const EpochRecord& result) {
    const std::string& metric = options_.schedule.metric;
    const std::optional<double> value = metric == "last-batch" ? result.last_loss : metric == "loss" ? result.test_loss : result.test_accuracy;
    // The last batch counts only at the end of its epoch; evaluations take place only there.
    if (value && (metric != "last-batch" || batch_ == steps_per_epoch_)) schedule_.end_epoch(*value);
  }

  void begin_result() {
    EpochRecord& result = epochs_.emplace_back();
    if (epochs_.size() == 1 && start_.of_run != nullptr && (options_.steps || start_.batch > 0)) result = start_.of_run->epoch_so_far;
    result.epoch = options_.steps ? 1 : epoch_ + 1;
    result.steps_before = result.steps;
    const int64_t rest = options_.steps ? total_places_ - place() : steps_of_epoch() - batch_;
    result.steps_wanted = result.steps + rest;
  }

  /// The place moves to the next epoch, and a checkpoint is saved if one is due. False: the run has ended within the epoch.
  bool end_epoch() {
    const EpochRecord& result = epochs_.back();
    const bool due_by_steps = checkpoints_.is_due(engine_.steps_issued());
    const bool ended = batch_ == steps_per_epoch_;
    if (ended) ++epoch_, batch_ = 0;
    const bool due_by_epoch = checkpoints_.is_due_after_epoch(engine_.steps_issued(), result.test_accuracy);
    if (due_by_steps || due_by_epoch) save();
    return ended;
  }

  /// Where the next batch is. A whole epoch that has not been evaluated yet ends at batch steps_per_epoch_.
  struct Place {
    int64_t epoch, batch;
    bool operator==(const Place&) const = default;
  };
  int64_t place() const { return epoch_ * steps_per_epoch_ + batch_; }
  int64_t steps_of_epoch() const { return std::min(steps_per_epoch_, total_places_ - epoch_ * steps_per_epoch_); }

  /// requires that the results of all steps have been taken
  void save() {
    RunState state;
    state.version = VITRINE_VERSION;
    state.epoch = epoch_;
    state.batch = batch_;
    state.batches_per_epoch = steps_per_epoch_;
    state.batch_size = options_.batch_size;
    state.seed = options_.seed;
    if (!epochs_.empty()) {
      state.epoch_so_far = epochs_.back();
      state.test_loss = epochs_.back().test_loss;
      state.test_accuracy = epochs_.back().test_accuracy;
    }
    state.schedule = schedule_.state();
    state.settings = settings_;
    saved_ = {epoch_, batch_};
    checkpoints_.save(std::move(state));
  }

  /// Of the averages of the weights, if there are any.
  std::optional<Evaluation> evaluate() {
    std::optional<Engine::AverageScope> averages;
    if (options_.recipe.ema) averages.emplace(engine_);
    return evaluate_test_set(options_, job_, run_, "evaluating", counts_confusion(options_, job_));
  }

  void add_step(const StepResult& totals) {
    const int64_t number = first_step_ + static_cast<int64_t>(step_losses_.size());
    log_.add_step({number + 1, (number + start_.shift) / steps_per_epoch_ + 1, totals.mean_loss(), rates_[step_losses_.size()],
                   engine_.config().precision.loss_scaling.active() ? std::optional(totals.loss_scale) : std::nullopt});
    step_losses_.push_back(totals.mean_loss());
    record_.add(totals);
  }

  void train_epoch(EpochRecord& result) {
    const int64_t steps = steps_of_epoch();
    Progress progress(epoch_count_ > 1 ? fmt::format("epoch {}/{}", epoch_ + 1, epoch_count_) : "training", steps - batch_,
                      {options_.quiet, options_.log_every});
    const int64_t begin = steady_now_ns();
    epoch_begin_seconds_ = result.seconds;
    const auto take_time = [&] { result.seconds = epoch_begin_seconds_ + static_cast<double>(steady_now_ns() - begin) * 1e-9; };
    StepResult done;
    int64_t steps_done = 0;
    const auto take_totals = [&](bool wait) {
      for (const StepResult& totals : engine_.take_step_results(wait)) {
        add_step(totals);
        for (StepResult* sum : {&done, &result.totals}) {
          sum->loss_sum += totals.loss_sum;
          sum->valid += totals.valid;
        }
        stopped_ = stopped_ || totals.stop_votes > 0;
        result.last_loss = totals.mean_loss();
        ++result.steps;
        progress.update(++steps_done, done.valid, done.mean_loss());
        if (hooks_.steps_done) hooks_.steps_done(static_cast<int64_t>(step_losses_.size()));
      }
    };
    const bool alone = run_.devices->process_count() == 1;
    while (batch_ < steps && !stopped_) {
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
      ++batch_;
      result.samples += item->global_samples;
      take_totals(false);
      if (engine_.steps_issued() % PhaseRecorder::kStepsBetweenPolls == 0) recorder_.poll(source_.take_spans(), first_step_ + 1);
      if (options_.verify_replicas > 0 && engine_.steps_issued() % options_.verify_replicas == 0) engine_.verify_replicas();
      // A checkpoint at the end of an epoch follows its evaluation.
      if (stopped_ || batch_ == steps || !checkpoints_.is_due(engine_.steps_issued())) continue;
      take_totals(true);
      take_time();
      if (!stopped_) save();
    }
    take_totals(true);
    take_time();
    recorder_.collect(source_.take_spans(), first_step_ + 1);
  }

  void set_learning_rate() {
    const ScheduledValues values = schedule_.at(engine_.steps_issued() + start_.shift);
    engine_.set_learning_rate(values.lr);
    if (values.momentum) engine_.set_momentum(*values.momentum);
    rates_.push_back(values.lr);
  }

  void log_epoch(const EpochRecord& result) {
    const auto step = first_step_ + static_cast<int64_t>(step_losses_.size());
    RunLog::Epoch epoch;
    epoch.step = step;
    epoch.epoch = result.epoch;
    epoch.train_loss = result.totals.mean_loss();
    epoch.samples_per_second = result.samples_per_second();
    epoch.samples = result.samples, epoch.train_seconds = result.seconds;
    epoch.test_loss = result.test_loss, epoch.test_accuracy = result.test_accuracy, epoch.test_top5 = result.test_top5;
    for (int d = 0; d < run_.devices->size(); ++d) epoch.memory.push_back({(*run_.devices)[d].name(), (*run_.devices)[d].pool().statistics()});
    if (result.test_loss && confusion_) epoch.confusion = &*confusion_;
    log_.add_epoch(epoch);
  }

  void print_epoch(const EpochRecord& result) const {
    if (options_.json && options_.quiet) return;  // only rank 0 prints on stderr
    std::string line = options_.steps ? fmt::format("{} step{}", result.steps, result.steps == 1 ? "" : "s")
                                      : fmt::format("epoch {}/{}", result.epoch, epoch_count_);
    if (!result.whole()) line += fmt::format(" (interrupted after {} of {} steps)", result.steps, result.steps_wanted);
    if (result.steps > 0) line += fmt::format("  train loss {:.4f}", result.totals.mean_loss());
    if (result.test_loss) {
      line += fmt::format("  test loss {:.4f}  test accuracy {:.4f}", *result.test_loss, *result.test_accuracy);
      line += describe_top5(result.test_top5);
    }
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
  int64_t steps_per_epoch_;
  Start start_;
  int64_t total_places_, epoch_count_;  // the end of the run: a number of batches, counted from its start, and the epochs that they begin
  int64_t first_step_;                  // of this process
  int64_t epoch_, batch_;               // the place of the next batch; epochs count from 0
  std::optional<Place> saved_;          // the place of the last checkpoint
  std::vector<std::pair<std::string, std::string>> settings_;
  double epoch_begin_seconds_ = 0.0;  // of the current result
  LrSchedule schedule_;
  RunLog& log_;
  Checkpoints& checkpoints_;
  const TrainHooks& hooks_;
  std::vector<double> rates_;  // learning rates of the steps issued
  BatchSource source_;
  RecordedSteps recorded_;
  PhaseRecorder recorder_;
  StepRecord record_;
  std::vector<double> step_losses_;
  std::vector<EpochRecord> epochs_;
  std::optional<ConfusionMatrix> confusion_;  // of the last evaluation
};

/// Saves the averages of the weights beside the weights, if there are any. Every process calls it.
void save_averages(const Options& options, const std::string& model, Engine& engine, const Processes& processes) {
  if (!options.recipe.ema || options.save.empty()) return;
  const Engine::AverageScope averages(engine);
  Options beside = options;
  beside.save = averages_path(options.save);
  save_weights(beside, model, engine, processes);
}

/// Each process writes its own file: FILE.json, FILE.rank1.json and so on.
std::string path_of_rank(const std::string& path, const Processes& processes) {
  if (path.empty() || processes.leads()) return path;
  const size_t dot = path.rfind('.');
  const bool has_ending = dot != std::string::npos && path.find('/', dot) == std::string::npos;
  const std::string rank = fmt::format(".rank{}", processes.process_group()->rank());
  return has_ending ? path.substr(0, dot) + rank + path.substr(dot) : path + rank;
}

/// The exit status of a run that was asked to end: 143 if any process got SIGTERM.
int agreed_interrupt_status(const Processes& processes) {
  if (!processes.process_group()) return interrupt_status();
  return processes.process_group()->sum("the signals", {terminated() ? 1.0 : 0.0})[0] > 0.0 ? kExitTerminated : kExitInterrupted;
}

Record make_record(const Options& options, const std::vector<std::string>& notes, const Job& job, const std::vector<DeviceId>& devices,
                   const Processes& processes, Run& run, const Training& training, const Checkpoints& checkpoints,
                   const std::optional<Resumed>& resumed) {
  Record record;
  record.title = fmt::format("{} on {} devices, {}", job.model.name, run.devices->world_size(), options.mode_name());
  record.command_line = command_line(options);
  record.facts = run_facts(options, job, run, options.mode_name());
  for (const std::string& note : notes) record.facts.emplace_back("chosen", note);
  if (resumed) record.facts.emplace_back("continues from", fmt::format("{}, step {}", resumed->folder, resumed->state.step));
  if (!training.epochs().empty() && !training.epochs().back().whole()) {
    const EpochRecord& last = training.epochs().back();
    record.facts.emplace_back("interrupted", fmt::format("epoch {}, after {} of {} steps", last.epoch, last.steps, last.steps_wanted));
  }
  record.config = config_json(options, job, devices, run.devices->world_size()).dump();
  record.notes = notes;
  record.processes = processes.count();
  record.dataset_bytes = dataset_bytes(job.data);
  record.interrupted = training.stopped();
  record.checkpoints = checkpoints.record();
  if (resumed) record.resumed_from = resumed->folder;
  record.communicator = run.engine->communicator();
  record.convolutions = conv2d_choices((*run.devices)[0].compute());
  RunRecord& of = record.runs.emplace_back(configured_run(options, run.engine->config(), run.engine->batch_plan()));
  of.steps = training.record();
  of.diverged = training.diverged();
  of.first_step = training.first_step();
  of.step_losses = training.step_losses();
  of.epochs = training.epochs();
  if (options.confusion) of.confusion = training.confusion();
  of.devices = measure_devices(run);
  training.recorder().add_to(of.devices);
  if (!options.report.empty()) add_recorded_step(of, run, training.recorder().kept_spans(), training.recorded());
  of.devices = gather_devices(processes, std::move(of.devices));
  return record;
}

}  // namespace

void check_train_schedule(const Options& options) {
  const LrScheduleConfig schedule = resolve_schedule(options.schedule, std::numeric_limits<int64_t>::max(), options.evaluate && !options.steps);
  const OptimizerConfig optimizer = resolve_optimizer(options);
  if (schedule.kind == LrScheduleConfig::Kind::one_cycle && optimizer.kind == OptimizerConfig::Kind::sgd && optimizer.sgd.momentum == 0.0) {
    throw ConfigError(
        "--lr-schedule one-cycle changes the momentum, which sgd does not have without --momentum; give one, for example --momentum 0.9");
  }
}

Trained train_job(const Options& options, const Job& job, TrainSetup setup, const Processes& processes, Attempts& attempts, const TrainHooks& hooks) {
  const std::vector<DeviceId>& devices = setup.devices;
  const Scheme scheme = resolve_scheme(options, devices, setup.group->world_size());
  if (processes.process_group()) agree_on_run(options, job, *processes.process_group());
  Run run = open_run(std::move(setup.group), job, engine_config(options, job, scheme, resolve_precision(options)),
                     train_workload(options, job, options.steps, options.evaluate), {options.init_weights, options.allow_non_finite},
                     RecordedSteps::all(options), !options.steps || *options.steps * options.batch_size >= job.data.train.size());
  const std::optional<Resumed> resumed = resume_run(options, job, run, processes);
  if (!options.json) fmt::print("{}\n", describe_run(options, job, run, options.mode_name()));
  std::fflush(stdout);

  RunLog::Target target{.tensorboard = options.tensorboard, .file = options.log, .facts = run_facts(options, job, run, options.mode_name())};
  target.config = config_json(options, job, devices, run.devices->world_size()).dump();
  for (int d = 0; d < run.devices->size(); ++d) target.devices.push_back((*run.devices)[d].name());
  if (!processes.leads()) target.tensorboard = target.file = "";
  target.steps_before = run.engine->steps_issued();
  RunLog log(target);
  Checkpoints checkpoints(options, processes, run, job.model.name, std::move(setup.checkpoints), resumed ? resumed->state.best : std::nullopt);
  Training training(options, job, run, log, checkpoints, resumed, hooks);
  try {
    training.run();
  } catch (...) {
    rescue_weights(options, job.model.name, *run.engine, processes);
    throw;
  }
  Trained trained;
  trained.status = training.stopped() ? agreed_interrupt_status(processes) : kExitOk;
  // A failure here does not prevent the rest; the checkpoint and the weights come first.
  attempts.run([&] { checkpoints.finish(); });
  const bool saved = attempts.run([&] { save_weights(options, job.model.name, *run.engine, processes); });
  if (saved && !options.save.empty()) {
    trained.files += fmt::format("\nThe {}weights are in {}\n", training.diverged().empty() ? "" : "last finite ", options.save);
  }
  if (saved && attempts.run([&] { save_averages(options, job.model.name, *run.engine, processes); }) && options.recipe.ema && !options.save.empty()) {
    trained.files += fmt::format("The average of the weights is in {}\n", averages_path(options.save));
  }
  attempts.run([&] { log.close(); });
  attempts.run([&] {
    training.end();
    run.engine->finish();
    if (options.verify_replicas > 0) run.engine->verify_replicas();
  });
  const std::string trace = path_of_rank(options.trace, processes), memory_history = path_of_rank(options.memory_history, processes);
  if (!trace.empty()) attempts.run([&] { write_trace_file(trace, *run.devices, training.recorder().kept_spans()); });
  if (!memory_history.empty()) attempts.run([&] { write_memory_history(memory_history, *run.devices, training.recorded()); });
  attempts.run([&] { trained.record = make_record(options, setup.notes, job, devices, processes, run, training, checkpoints, resumed); });
  return trained;
}

int run_train(const Options& asked, const Processes& processes) {
  // Usage errors before any work.
  check_train_schedule(asked);
  const std::vector<DeviceId> devices = resolve_devices(asked, cuda_device_count());
  if (processes.leads()) {
    check_writable("--save", asked.save);
    if (asked.recipe.ema && !asked.save.empty()) check_writable("--save", averages_path(asked.save));
    check_writable("--report", asked.report);
    check_writable("--log", asked.log);
  }
  check_writable("--trace", path_of_rank(asked.trace, processes));
  check_writable("--memory-history", path_of_rank(asked.memory_history, processes));
  std::unique_ptr<CheckpointDirectory> checkpoint_directory = open_checkpoint_directory(asked, processes);
  auto group = std::make_unique<DeviceGroup>(device_group_options(asked, devices, processes.process_group()));
  resolve_scheme(asked, devices, group->world_size());
  print_device_warnings(asked, *group);
  const Job job = open_job(asked);
  if (!asked.choices.batch_size) print_warnings(asked, batch_warnings(asked, job));
  Chosen chosen = choose_by_plan(asked, job, *group);
  if (asked.choices.split && asked.balance == "time") balance_by_time(chosen, job, group);
  for (const std::string& note : chosen.notes) fmt::print(asked.json ? stderr : stdout, "{}\n", note);
  const Options& options = chosen.options;
  Attempts attempts;
  Trained trained = train_job(options, job, {devices, std::move(group), std::move(checkpoint_directory), chosen.notes}, processes, attempts);
  if (trained.record) {
    attempts.run([&] {
      const Record& record = *trained.record;
      if (!options.report.empty() && processes.leads() && attempts.run([&] { html::write_page(options.report, record); })) {
        trained.files += fmt::format("\nThe report is in {}\n", options.report);
      }
      if (options.json) {
        print_json(run_json(record));
        return;
      }
      const Style style = Style::of(STDOUT_FILENO);
      if (record.run().confusion) fmt::print("{}\n", record.run().confusion->report(job.data.test.class_names, style));
      fmt::print("{}{}", run_report(record, style), trained.files);
    });
  }
  attempts.rethrow();
  if (const std::string& diverged = trained.record->run().diverged; !diverged.empty()) {
    if (processes.leads()) {
      fmt::print(stderr, "vitrine: {}: --lr, --clip-norm, --precision; --allow-non-finite trains on with NaN\n", diverged);
    }
    return kExitFailure;
  }
  return trained.status;
}

}  // namespace vitrine::tools
