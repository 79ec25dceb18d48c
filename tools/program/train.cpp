// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

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
#include "tools/program/communication_report.h"
#include "tools/program/describe.h"
#include "tools/program/evaluate.h"
#include "tools/program/interrupt.h"
#include "tools/program/json_report.h"
#include "tools/program/output_file.h"
#include "tools/program/process_measurements.h"
#include "tools/program/progress.h"
#include "tools/program/recorded_steps.h"
#include "tools/program/report.h"
#include "tools/program/run_report.h"
#include "tools/program/save.h"
#include "tools/program/step_record.h"
#include "tools/program/trace_file.h"
#include "tools/program/warnings.h"

namespace vitrine::tools {

namespace {

/// An epoch, or all steps of a run with --steps.
struct EpochResult {
  int64_t epoch = 1;
  StepResult totals;
  int64_t samples = 0;
  int64_t steps = 0, steps_wanted = 0;  // fewer steps than wanted: it was interrupted
  double seconds = 0;                   // of training alone
  std::optional<Evaluation> test;

  bool whole() const { return steps == steps_wanted; }
  double samples_per_second() const { return seconds > 0.0 ? static_cast<double>(samples) / seconds : 0.0; }
};

class Training {
 public:
  Training(const Options& options, const Job& job, Run& run)
      : options_(options),
        job_(job),
        run_(run),
        engine_(*run.engine),
        steps_per_epoch_(batches_per_epoch({options.shuffle, options.drop_last, options.seed}, job.data.train.size(), options.batch_size)),
        epoch_count_(options.steps ? (*options.steps + steps_per_epoch_ - 1) / steps_per_epoch_ : options.epochs.value_or(1)),
        total_steps_(options.steps.value_or(epoch_count_ * steps_per_epoch_)),
        first_step_(engine_.steps_issued()),
        source_(job.data.train, train_loader_config(options, job, run, epoch_count_)),
        recorded_(options, total_steps_),
        recorder_(run, recorded_.spans()),
        record_(engine_.config().precision) {}

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

  /// When all steps are done.
  void end() {
    if (engine_.config().precision.loss_scaling.active()) record_.end(engine_.loss_scale_state().first);
  }

  /// Ended before its time, in all processes at the same step.
  bool stopped() const { return stopped_; }
  /// Why training was stopped because of a value that is not finite; empty when it was not. The engine holds the last finite parameters.
  const std::string& diverged() const { return diverged_; }
  const std::vector<double>& step_losses() const { return step_losses_; }
  const std::vector<EpochResult>& epochs() const { return epochs_; }
  const PhaseRecorder& recorder() const { return recorder_; }
  const RecordedSteps& recorded() const { return recorded_; }
  const StepRecord& record() const { return record_; }

 private:
  void run_epochs() {
    for (int64_t epoch = 1; epoch <= epoch_count_ && !stopped_; ++epoch) {
      // With --steps there is one result, however many epochs it goes over.
      if (!options_.steps || epochs_.empty()) epochs_.emplace_back().epoch = epoch;
      train_epoch(epoch, epochs_.back());
      const bool ends_here = !options_.steps || epoch == epoch_count_;
      if (ends_here && options_.evaluate && !stopped_) {
        epochs_.back().test = evaluate_test_set(options_, job_, run_, "evaluating");
        stopped_ = !epochs_.back().test.has_value();
        recorder_.discard();
      }
      if (ends_here || stopped_) print_epoch(epochs_.back());
    }
  }

  void add_step(const StepResult& totals) {
    step_losses_.push_back(totals.mean_loss());
    record_.add(totals);
  }

  void train_epoch(int64_t epoch, EpochResult& result) {
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
        // Several processes end behind one step: it is the one whose totals tell all of them.
        if (stopped_ = alone; stopped_) break;
        engine_.vote_to_stop();
      }
      const auto item = source_.next(engine_.steps_issued());
      VITRINE_ASSERT(item.has_value(), "the loader ended before the epochs it was made for");
      recorded_.before_step(*run_.devices, engine_.steps_issued());
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

  void print_epoch(const EpochResult& result) const {
    if (options_.json && options_.quiet) return;  // on stderr, rank 0 speaks for all
    std::string line = options_.steps ? fmt::format("{} step{}", step_losses_.size(), step_losses_.size() == 1 ? "" : "s")
                                      : fmt::format("epoch {}/{}", result.epoch, epoch_count_);
    if (!result.whole()) line += fmt::format(" (interrupted after {} of {} steps)", result.steps, result.steps_wanted);
    if (result.steps > 0) line += fmt::format("  train loss {:.4f}", result.totals.mean_loss());
    if (result.test) line += fmt::format("  test loss {:.4f}  test accuracy {:.4f}", result.test->loss, result.test->accuracy);
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
  BatchSource source_;
  RecordedSteps recorded_;
  PhaseRecorder recorder_;
  StepRecord record_;
  std::vector<double> step_losses_;
  std::vector<EpochResult> epochs_;
};

/// Each process writes a file of its own: FILE.json, and FILE.rank1.json and so on.
std::string path_of_rank(const std::string& path, const Processes& processes) {
  if (path.empty() || processes.leads()) return path;
  const size_t dot = path.rfind('.');
  const bool has_ending = dot != std::string::npos && path.find('/', dot) == std::string::npos;
  const std::string rank = fmt::format(".rank{}", processes.process_group()->rank());
  return has_ending ? path.substr(0, dot) + rank + path.substr(dot) : path + rank;
}

Json epochs_json(const std::vector<EpochResult>& epochs) {
  Json json = Json::array();
  for (const EpochResult& e : epochs) {
    json.push_back({{"epoch", e.epoch},
                    {"train_loss", e.totals.mean_loss()},
                    {"test_loss", e.test ? Json(e.test->loss) : Json()},
                    {"test_accuracy", e.test ? Json(e.test->accuracy) : Json()},
                    {"samples", e.samples},
                    {"steps", e.steps},
                    {"interrupted", !e.whole()},
                    {"seconds", e.seconds},
                    {"samples_per_second", e.samples_per_second()}});
  }
  return json;
}

/// How a GPU convolves (the first one tells for all), and why cuDNN does not where it does not. Empty on CPU devices.
std::string convolution_report(const std::vector<Conv2dChoice>& choices) {
  if (choices.empty()) return {};
  std::map<std::string, int> by_implementation;
  for (const Conv2dChoice& choice : choices) ++by_implementation[choice.implementation];
  std::string text = "Convolutions:";
  for (const auto& [implementation, count] : by_implementation) text += fmt::format(" {} by {};", count, implementation);
  text.back() = '\n';
  for (const Conv2dChoice& choice : choices) {
    if (!choice.reason.empty()) text += fmt::format("  {}: {}\n", choice.operation, choice.reason);
  }
  return text;
}

Json convolutions_json(const std::vector<Conv2dChoice>& choices) {
  Json json = Json::array();
  for (const Conv2dChoice& choice : choices) {
    json.push_back({{"operation", choice.operation}, {"implementation", choice.implementation}, {"reason", choice.reason}});
  }
  return json;
}

std::vector<EpochFigures> epoch_figures(const Training& training, int64_t batch_size) {
  std::vector<EpochFigures> figures;
  double step = 0;
  for (const EpochResult& e : training.epochs()) {
    step += std::ceil(static_cast<double>(e.samples) / static_cast<double>(batch_size));
    figures.push_back({step, e.totals.mean_loss(), e.test ? e.test->loss : NAN, e.test ? e.test->accuracy : NAN});
  }
  return figures;
}

void write_report(const Options& options, const std::vector<std::string>& notes, const Job& job, const Processes& processes, Run& run,
                  const Training& training, const Measurements& measurements) {
  TrainReport report;
  report.title = fmt::format("{} on {} devices, {}", job.model.name, run.devices->world_size(), options.mode_name());
  report.command_line = command_line(options);
  report.facts = run_facts(options, job, run, options.mode_name());
  for (const std::string& note : notes) report.facts.emplace_back("chosen", note);
  if (!training.epochs().empty() && !training.epochs().back().whole()) {
    const EpochResult& last = training.epochs().back();
    report.facts.emplace_back("interrupted", fmt::format("epoch {}, after {} of {} steps", last.epoch, last.steps, last.steps_wanted));
  }
  report.figures = findings_input(options, run, measurements);
  report.figures.steps = static_cast<int64_t>(training.step_losses().size());
  report.figures.skipped_steps = training.record().skipped();
  report.figures.diverged = training.diverged();
  report.figures.non_finite_steps = training.record().non_finite();
  report.figures.first_non_finite = training.record().first_non_finite();
  report.outside = describe_outside(measurements.figures, processes.count());
  report.processes = processes.count();
  report.step_losses = training.step_losses();
  report.epochs = epoch_figures(training, options.batch_size);
  for (const StepRecord::Change& change : training.record().loss_scales()) {
    report.loss_scales.push_back({static_cast<double>(change.step + 1), change.loss_scale});
    report.figures.loss_scale = change.loss_scale;
  }
  add_recorded_step(report, run, training.recorder().kept_spans(), training.recorded());
  html::write_page("--report", options.report, train_page(report));
}

void print_results(const Options& options, const std::vector<std::string>& notes, const Job& job, const std::vector<DeviceId>& devices,
                   const Processes& processes, Run& run, const Training& training, const Measurements& measurements, const std::string& files) {
  const auto& [figures, tables, communication] = measurements;
  std::vector<std::string> names;
  for (const DeviceFigures& device : figures) names.push_back(device.device);
  const std::vector<Conv2dChoice> convolutions = conv2d_choices((*run.devices)[0].compute());
  if (options.json) {
    Json json;
    json["config"] = config_json(options, job, devices, run.devices->world_size());
    json["notes"] = notes;
    json["processes"] = processes.count();
    json["step_losses"] = training.step_losses();
    json["loss_scale"] = training.record().loss_scale_json();
    json["reduction_error"] = training.record().reduction_error_json();
    json["gradient_norms"] = training.record().gradient_norms_json();
    json["epochs"] = epochs_json(training.epochs());
    json["devices"] = devices_json(figures);
    json["phases"] = phases_json(names, tables);
    json["waits"] = waits_json(names, tables);
    json["communication"] = communication_json(names, communication);
    json["communicator"] = run.engine->communicator();
    json["convolutions"] = convolutions_json(convolutions);
    json["interrupted"] = training.stopped();
    json["diverged"] = training.diverged().empty() ? Json() : Json(training.diverged());
    print_json(json);
    return;
  }
  const Style style = Style::of(STDOUT_FILENO);
  const std::string phases = phase_report(names, tables, style);
  if (!phases.empty()) fmt::print("\n{}", phases);
  const std::string buckets = communication_report(names, communication, style);
  if (!buckets.empty()) fmt::print("\n{}", buckets);
  fmt::print("\n{}", memory_report(figures, dataset_bytes(job.data), style, processes.count()));
  const std::string steps = training.record().report();
  if (!steps.empty()) fmt::print("\n{}", steps);
  const std::string convolution = convolution_report(convolutions);
  if (!convolution.empty()) fmt::print("\n{}", convolution);
  fmt::print("{}", files);
}

}  // namespace

int run_train(const Options& asked, const Processes& processes) {
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

  Training training(options, job, run);
  try {
    training.run();
  } catch (...) {
    rescue_weights(options, job.model.name, *run.engine, processes);
    throw;
  }
  // What fails here costs nothing of the rest; the weights come first.
  Attempts attempts;
  std::string files;
  const bool saved = attempts.run([&] { save_weights(options, job.model.name, *run.engine, processes); });
  if (saved && !options.save.empty()) {
    files += fmt::format("\nThe {}weights are in {}\n", training.diverged().empty() ? "" : "last finite ", options.save);
  }
  attempts.run([&] {
    training.end();
    run.engine->finish();
    if (options.verify_replicas > 0) run.engine->verify_replicas();
  });
  if (!trace.empty()) attempts.run([&] { write_trace_file(trace, *run.devices, training.recorder().kept_spans()); });
  if (!memory_history.empty()) attempts.run([&] { write_memory_history(memory_history, *run.devices, training.recorded()); });
  attempts.run([&] {
    const Measurements measurements =
        gather_measurements(processes, {measure_devices(run), training.recorder().tables(), training.recorder().communication()});
    if (!options.report.empty() && processes.leads()) {
      const bool reported = attempts.run([&] { write_report(options, chosen.notes, job, processes, run, training, measurements); });
      if (reported) files += fmt::format("\nThe report is in {}\n", options.report);
    }
    print_results(options, chosen.notes, job, devices, processes, run, training, measurements, files);
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
