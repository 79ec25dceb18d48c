// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "data/sampler.h"
#include "nn/checkpoint_directory.h"
#include "runtime/error.h"
#include "runtime/printable.h"
#include "runtime/trace/span.h"
#include "runtime/units.h"
#include "tools/program/advice.h"
#include "tools/program/attempts.h"
#include "tools/program/checkpoints.h"
#include "tools/program/commands.h"
#include "tools/program/describe.h"
#include "tools/program/evaluate.h"
#include "tools/program/findings.h"
#include "tools/program/folder_lock.h"
#include "tools/program/interrupt.h"
#include "tools/program/json_report.h"
#include "tools/program/json_text.h"
#include "tools/program/output_file.h"
#include "tools/program/report/page.h"
#include "tools/program/reproduction.h"
#include "tools/program/reproduction_files.h"
#include "tools/program/run_facts.h"
#include "tools/program/run_state.h"
#include "tools/program/terminal_report.h"
#include "tools/program/train_job.h"
#include "tools/program/training.h"
#include "tools/program/warnings.h"

namespace vitrine::tools {

namespace {

namespace fs = std::filesystem;

/// One run: a configuration with a seed.
struct PlannedRun {
  Configuration configuration;
  Options options;  // of vitrine train
  std::vector<DeviceId> devices;
  std::string folder, settings;
};

/// The devices of dp and ddp.
std::vector<DeviceId> reproduction_devices(const Options& o) {
  const int gpus = cuda_device_count();
  const bool one = o.reproduce.as_published;
  const std::string usual = gpus > 0 ? (one ? "cuda:0" : "cuda:all") : (one ? "cpu:0" : "cpu:0-1");
  const std::vector<DeviceId> devices = parse_device_list(o.devices.empty() ? usual : o.devices, gpus);
  if (one && devices.size() > 1) {
    throw ConfigError(
        fmt::format("--as-published: the published figures are those of one device, but --devices {} has {}; name one", o.devices, devices.size()));
  }
  return devices;
}

/// Empty if they cannot be read: then the run fails with the reason when it starts.
std::vector<NamedCheckpoint> checkpoints_of(const PlannedRun& run) {
  try {
    return list_checkpoints(run.options.checkpoints.directory);
  } catch (const DataError&) {
    return {};
  }
}

/// The steps that a run has made, as far as they are saved.
int64_t steps_of(const PlannedRun& run) {
  const std::vector<NamedCheckpoint> checkpoints = checkpoints_of(run);
  return checkpoints.empty() ? 0 : checkpoints.back().step;
}

/// The result of a run. Nothing if it cannot be read: then the run fails with the reason when its turn comes.
std::optional<RunResult> result_of(const PlannedRun& run) {
  try {
    return read_run_result(run.folder);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

/// Warnings and failures may quote bytes of a damaged file.
void print_file_warning(const std::string& text) {
  fmt::print(stderr, "vitrine: warning: {}\n", printable_lines(text));
  std::fflush(stderr);
}

EngineConfig config_of(const PlannedRun& run, const Job& job) {
  return engine_config(run.options, job, resolve_scheme(run.options, run.devices), resolve_precision(run.options));
}

/// Refuses to start what would fill the disk: hours later a checkpoint could not be saved.
void check_disk(const Options& o, const Job& job, const std::vector<PlannedRun>& runs) {
  const int64_t bytes = checkpoint_bytes(FlatLayout(job.model.net->parameters(), 0), BufferLayout(*job.model.net), config_of(runs.front(), job));
  std::vector<int64_t> saved;
  for (const PlannedRun& run : runs) {
    const std::optional<RunResult> result = result_of(run);
    if (!result || result->state == "interrupted") saved.push_back(static_cast<int64_t>(checkpoints_of(run).size()));
  }
  const int64_t missing = missing_checkpoints(*o.epochs, o.checkpoints.keep_last, saved);
  std::error_code error;
  const fs::space_info space = fs::space(o.reproduce.out, error);
  if (error || missing * bytes <= static_cast<int64_t>(space.available)) return;
  throw DataError(fmt::format(
      "--out {}: {} checkpoints of {} need {}, but {} are free; name a folder on another disk, or lower --keep-last or --epochs", o.reproduce.out,
      format_count(missing), format_bytes(bytes), format_bytes(missing * bytes), format_bytes(static_cast<int64_t>(space.available))));
}

/// Predicts from the steps so far when all runs are done.
class Estimate {
 public:
  ///   evaluation  time of one evaluation of the test set, as a share of an epoch's steps      steps_left  of all runs
  Estimate(double evaluation, int64_t steps_per_epoch, int64_t steps_left)
      : evaluation_(evaluation), steps_per_epoch_(steps_per_epoch), steps_left_(steps_left) {}

  void begin_run(const std::string& name) {
    name_ = name;
    steps_ = 0;
  }
  /// The result of a step has been read. After some steps of the first run the whole time is printed.
  void add_step(int64_t runs) {
    const int64_t now = steady_now_ns();
    --steps_left_;
    if (steps_++ == 0) {  // includes the first use of memory and libraries
      begin_ns_ = now;
      return;
    }
    ++timed_;
    nanoseconds_ += now - std::exchange(begin_ns_, now);
    if (printed_ || (timed_ < kSteps && nanoseconds_ < kNanoseconds)) return;
    printed_ = true;
    fmt::print(stderr, "vitrine: about {} left for {} run{} on this machine, by {} step{} of {}\n", format_duration(seconds_left()), runs,
               runs == 1 ? "" : "s", timed_, timed_ == 1 ? "" : "s", name_);
    std::fflush(stderr);
  }
  void end_run(int64_t done, int64_t runs) const {
    if (timed_ == 0 || done == runs) return;
    fmt::print(stderr, "vitrine: {} of {} runs are done; about {} left\n", done, runs, format_duration(seconds_left()));
    std::fflush(stderr);
  }
  /// A run ended before its last step.
  void drop_steps(int64_t count) { steps_left_ -= count; }
  int64_t steps_of_run() const { return steps_; }

 private:
  static constexpr int64_t kSteps = 10, kNanoseconds = 5'000'000'000;

  double seconds_left() const {
    const double per_step = static_cast<double>(nanoseconds_) * 1e-9 / static_cast<double>(timed_);
    // Each epoch is evaluated by training and again from its files. The time of whole epochs includes the former.
    const double evaluations = timed_ < steps_per_epoch_ ? 2.0 : 1.0;
    return per_step * static_cast<double>(std::max<int64_t>(steps_left_, 0)) * (1.0 + evaluations * evaluation_);
  }

  double evaluation_;
  int64_t steps_per_epoch_, steps_left_;
  std::string name_;
  int64_t steps_ = 0, timed_ = 0, begin_ns_ = 0, nanoseconds_ = 0;
  bool printed_ = false;
};

class Reproduction {
 public:
  Reproduction(const Options& asked, const Processes& processes, std::vector<DeviceId> devices)
      : asked_(asked), processes_(processes), devices_(std::move(devices)), job_(open_job(asked)) {
    const std::vector<std::string> names = device_names(devices_);
    for (int64_t s = 0; s < asked.reproduce.seeds; ++s) {
      for (const Configuration& configuration : configurations(asked)) add(configuration, names, asked.seed + static_cast<uint64_t>(s));
    }
    std::error_code error;
    fs::create_directories(asked.reproduce.out, error);
    if (error) throw DataError(fmt::format("--out {}: the folder cannot be made ({})", asked.reproduce.out, error.message()));
    lock_.emplace("--out", asked.reproduce.out);
    check_settings();
    check_disk(asked, job_, planned_);
    find_facts();
  }

  /// Makes all runs that are not there yet, until interrupted.
  void run() {
    const int64_t steps =
        *asked_.epochs * batches_per_epoch({asked_.shuffle, asked_.drop_last, asked_.seed}, job_.data.train.size(), asked_.batch_size);
    int64_t steps_left = 0;
    std::vector<bool> waits(planned_.size(), false);
    for (size_t i = 0; i < planned_.size(); ++i) {
      const std::optional<RunResult> result = result_of(planned_[i]);
      waits[i] = !result || !result->done();
      if (waits[i]) steps_left += steps - steps_of(planned_[i]);
    }
    const int64_t wanted = std::count(waits.begin(), waits.end(), true);
    const double test = static_cast<double>(job_.data.test.size()), train = static_cast<double>(job_.data.train.size());
    // A forward pass is about a third of a step.
    Estimate estimate(test / train / 3.0, steps / *asked_.epochs, steps_left);
    for (size_t i = 0, number = 0; i < planned_.size() && !interrupted(); ++i) {
      RunRecord& record = record_.runs[i];
      if (!waits[i]) {
        attempt(record, [&] { load(planned_[i], record); });
        continue;
      }
      const int64_t before = steps_of(planned_[i]);
      print_progress(fmt::format("{} ({} of {})", record.name, ++number, wanted));
      estimate.begin_run(record.name);
      const TrainHooks hooks{.steps_done = [&](int64_t) { estimate.add_step(wanted - static_cast<int64_t>(number) + 1); }};
      attempt(record, [&] { make(planned_[i], record, hooks); });
      estimate.drop_steps(steps - before - estimate.steps_of_run());
      if (!interrupted()) estimate.end_run(static_cast<int64_t>(number), wanted);
    }
    for (size_t i = 0; i < planned_.size(); ++i) {
      RunRecord& record = record_.runs[i];
      attempt(record, [&] {
        if (record.reproduced->state == "not started" && fs::exists(planned_[i].folder)) load(planned_[i], record);
        read_log(planned_[i], record);
      });
    }
    record_.interrupted = interrupted();
    conclude(record_);
  }

  const Record& record() const { return record_; }
  const std::vector<DeviceId>& devices() const { return devices_; }

 private:
  void add(const Configuration& configuration, const std::vector<std::string>& names, uint64_t seed) {
    PlannedRun run{configuration, train_options(asked_, configuration, names, seed), devices_, {}, {}};
    if (configuration.mode == "single") run.devices.resize(1);
    check_combinations(run.options);
    device_group_options(run.options, run.devices);
    run.folder = fs::path(run.options.log).parent_path().string();
    run.settings = run_settings_text(run.options, job_, run.devices);
    RunRecord& record = record_.runs.emplace_back(configured_run(run.options, config_of(run, job_), {}));
    record.name = configuration.name();
    if (asked_.reproduce.seeds > 1) record.name += fmt::format(" seed {}", seed);
    ReproducedRun& of = record.reproduced.emplace();
    of.mode = configuration.mode, of.precision = configuration.precision;
    of.seed = seed;
    of.folder = run.folder;
    planned_.push_back(std::move(run));
  }

  void print_progress(const std::string& text) const {
    fmt::print(asked_.json ? stderr : stdout, "{}\n", Style::of(asked_.json ? STDERR_FILENO : STDOUT_FILENO).prose(text));
    std::fflush(asked_.json ? stderr : stdout);
  }

  /// Refuses runs with other settings before the first one starts. One whose settings cannot be read fails alone, when its turn comes.
  void check_settings() const {
    for (const PlannedRun& run : planned_) {
      try {
        check_run_settings(run.folder, run.settings);
      } catch (const DataError&) {
      }
    }
  }

  static void fail(RunRecord& record, const std::string& reason) {
    record.reproduced->state = "failed";
    record.reproduced->failure = printable_lines(reason);
    fmt::print(stderr, "vitrine: {} failed: {}\n", record.name, record.reproduced->failure);
    std::fflush(stderr);
  }

  /// Does the work of a run. What is thrown fails this run alone.
  static void attempt(RunRecord& record, const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      fail(record, in_reproduce_words(error.reason()));
    } catch (const SearchStopped&) {
      record.reproduced->state = "interrupted";
    } catch (const std::exception& error) {
      fail(record, error.what());
    }
  }

  void read_log(const PlannedRun& planned, RunRecord& record) const {
    if (const std::string damage = read_run_log(planned.folder, record); !damage.empty()) print_file_warning(damage);
    if (record.reproduced->state != "complete") return;
    record.reproduced->lost_epochs = std::max<int64_t>(0, *asked_.epochs - static_cast<int64_t>(record.epochs.size()));
    if (record.reproduced->lost_epochs == 0) return;
    print_file_warning(
        fmt::format("{}/log.jsonl lacks {} of {} epochs: the run's time is shown as not measured; remove the run's folder to make the run again",
                    planned.folder, record.reproduced->lost_epochs, *asked_.epochs));
  }

  /// The result of an earlier call.
  static void load(const PlannedRun& planned, RunRecord& record) {
    check_run_settings(planned.folder, planned.settings);
    if (const std::optional<RunResult> result = read_run_result(planned.folder)) {
      take(*result, record);
    } else if (steps_of(planned) > 0) {
      record.reproduced->state = "interrupted";
    }
  }

  static void take(const RunResult& result, RunRecord& record) {
    record.reproduced->state = result.state == "trained" ? "interrupted" : result.state;
    record.reproduced->saved = result.saved;
    record.reproduced->measured_steps = result.measured_steps;
    record.diverged = result.diverged;
    record.devices = result.devices;
  }

  /// Trains what is left of a run, then evaluates its saved epochs.
  void make(const PlannedRun& planned, RunRecord& record, const TrainHooks& hooks) {
    check_run_settings(planned.folder, planned.settings);
    RunResult result = read_run_result(planned.folder).value_or(RunResult{});
    if (result.done()) return take(result, record);
    std::string ended = "complete";
    if (result.state != "trained") {
      write_run_settings(planned.folder, planned.settings);
      result = train(planned, hooks, result);
      if (result.state == "diverged") ended = "diverged", result.state = "interrupted";
      write_run_result(planned.folder, result);
      take(result, record);
      if (result.state == "interrupted" && ended != "diverged") return;
    }
    std::optional<std::vector<SavedEpoch>> saved;
    try {
      saved = evaluate_saved(planned, record.name, ended == "complete");
    } catch (const DataError&) {
      // The next call goes back to the newest whole checkpoint.
      result.state = "interrupted";
      write_run_result(planned.folder, result);
      throw;
    }
    if (!saved) return;
    result.saved = std::move(*saved);
    result.state = ended;
    write_run_result(planned.folder, result);
    take(result, record);
  }

  /// Returns what came of training. If a checkpoint or the log could not be written, the result is written as that of an interrupted run, and the
  /// error is thrown.
  ///   before  the result of an earlier call
  RunResult train(const PlannedRun& planned, const TrainHooks& hooks, const RunResult& before) {
    auto directory = open_checkpoint_directory(planned.options, processes_);
    auto group = std::make_unique<DeviceGroup>(device_group_options(planned.options, planned.devices));
    const std::string name = planned.configuration.mode == "single" ? "single device" : planned.configuration.mode;
    Attempts attempts;
    const Trained trained =
        train_job(planned.options, job_, {planned.devices, std::move(group), std::move(directory), {}, name}, processes_, attempts, hooks);
    RunResult result;
    if (trained.record) {
      const RunRecord& run = trained.record->run();
      result.state = !run.diverged.empty() ? "diverged" : trained.status != kExitOk ? "interrupted" : "trained";
      result.diverged = run.diverged;
      result.devices = run.devices;
      result.measured_steps = static_cast<int64_t>(run.step_losses.size());
      const bool timed = !run.devices.empty() && run.devices.front().phases.steps > 0;
      // A run whose last steps were made by an earlier call has its measurements from there.
      if (!timed && before.measured_steps > result.measured_steps) {
        result.devices = before.devices;
        result.measured_steps = before.measured_steps;
      }
    }
    if (attempts.failed()) {
      RunResult kept = trained.record ? result : before;
      kept.state = "interrupted";
      kept.diverged.clear();
      attempts.run([&] { write_run_result(planned.folder, kept); });
    }
    attempts.rethrow();
    return result;
  }

  /// Evaluates every checkpoint at the end of an epoch from its files, as vitrine eval does. A damaged one is left out with a warning. Nothing if the
  /// program was interrupted.
  ///   needs_last  the newest must be whole, and that of the last epoch
  /// throws  DataError if it is not
  std::optional<std::vector<SavedEpoch>> evaluate_saved(const PlannedRun& planned, const std::string& name, bool needs_last) {
    Options options = planned.options;
    const char* const file = options.recipe.ema ? "/ema.safetensors" : "/model.safetensors";  // what training evaluates
    options.command = Options::Command::eval;
    options.loss_scale = "none";
    options.loss_scale_growth_interval.reset();
    options.clip_norm.reset();
    options.recipe = {};
    std::vector<SavedEpoch> all;
    std::optional<Run> run;
    const std::vector<NamedCheckpoint> checkpoints = list_checkpoints(options.checkpoints.directory);
    for (const NamedCheckpoint& checkpoint : checkpoints) {
      int64_t epoch = 0;
      try {
        const RunState state = parse_run_state(checkpoint.path, read_checkpoint(checkpoint.path));
        if (state.batch != 0) continue;  // where a run was interrupted
        epoch = state.epoch;
        const std::string weights = checkpoint.path + file;
        if (run) {
          load_weights(*run, {weights, options.allow_non_finite});
        } else {
          auto group = std::make_unique<DeviceGroup>(device_group_options(options, planned.devices));
          run = open_evaluation(options, job_, std::move(group), weights);
        }
      } catch (const DataError& error) {
        if (needs_last && &checkpoint == &checkpoints.back()) {
          throw DataError(fmt::format("{}; the same command continues from the newest whole checkpoint and trains this epoch again", error.what()));
        }
        print_file_warning(fmt::format("{}: {} is not evaluated: {}", name, checkpoint_name(checkpoint.step), error.what()));
        continue;
      }
      const auto found = evaluate_test_set(options, job_, *run, fmt::format("{}, evaluating epoch {}", name, epoch), false);
      if (!found) return std::nullopt;
      all.push_back({epoch, checkpoint_name(checkpoint.step), found->loss, found->accuracy, found->top5});
    }
    if (run) run->engine->finish();
    if (needs_last && (all.empty() || all.back().epoch != *asked_.epochs)) {
      throw DataError(fmt::format("{}: the checkpoint of the last epoch, {}, is missing; the same command trains what no checkpoint has again",
                                  options.checkpoints.directory, *asked_.epochs));
    }
    return all;
  }

  void find_facts() {
    DeviceGroup group(device_group_options(asked_, devices_));
    print_device_warnings(asked_, group);
    const Facts machine = machine_facts(group);
    const OptimizerConfig optimizer = resolve_optimizer(asked_);
    record_.kind = Record::Kind::reproduction;
    const size_t count = planned_.size() / static_cast<size_t>(asked_.reproduce.seeds);
    record_.title = fmt::format("{} in {} configuration{}", job_.model.name, count, count == 1 ? "" : "s");
    record_.command_line = command_line(asked_);
    record_.facts = {{"model and data", describe_job(job_, FlatLayout(job_.model.net->parameters(), 0))},
                     {"runs", fmt::format("{} in {}, {} seed{}; single runs on {}", asked_.reproduce.modes, asked_.precisions, asked_.reproduce.seeds,
                                          asked_.reproduce.seeds == 1 ? "" : "s", devices_.front().str())},
                     {"training", fmt::format("{} epoch{}, batch {}, {}, lr {}{}{}, seed {}", *asked_.epochs, *asked_.epochs == 1 ? "" : "s",
                                              asked_.batch_size, optimizer.name(), optimizer.learning_rate(), describe_schedule(asked_.schedule),
                                              describe_recipe(asked_.recipe), asked_.seed)}};
    record_.facts.insert(record_.facts.end(), machine.begin(), machine.end());
    record_.config = json_text(config_json(asked_, job_, devices_));
    record_.dataset_bytes = dataset_bytes(job_.data);
    record_.seeds = asked_.reproduce.seeds;
    record_.as_published = asked_.reproduce.as_published;
    if (record_.as_published) find_departures(machine);
    if (devices_.size() == 1 && !record_.as_published) {
      record_.notes.push_back(
          fmt::format("All modes run on one device, {}; give --devices to see dp and ddp divide the work", devices_.front().str()));
    }
  }

  /// What differs from the published conditions beside what --as-published sets.
  void find_departures(const Facts& machine) {
    const auto differs = [&](bool different, const std::string& here, const std::string& published) {
      if (different) record_.departures.push_back(fmt::format("{}; published: {}", here, published));
    };
    const Options& o = asked_;
    const Options published = published_options(o);
    const OptimizerConfig optimizer = resolve_optimizer(o);
    differs(o.model != published.model, "model " + o.model, published.model);
    differs(!o.data.starts_with("cifar10"), "data " + o.data, "CIFAR-10");
    differs(job_.model.height != 227, fmt::format("images of {0}x{0}", job_.model.height), "227x227");
    differs(o.limit_samples.has_value(), fmt::format("the first {} training images", format_count(o.limit_samples.value_or(0))), "all 50,000");
    differs(*o.epochs != *published.epochs, fmt::format("{} epoch{}", *o.epochs, *o.epochs == 1 ? "" : "s"), fmt::format("{}", *published.epochs));
    differs(o.batch_size != published.batch_size, fmt::format("batch size {}", o.batch_size), fmt::format("{}", published.batch_size));
    differs(std::string(optimizer.name()) != "adamw", fmt::format("optimizer {}", optimizer.name()), "adamw");
    differs(optimizer.learning_rate() != *published.lr, fmt::format("lr {}", optimizer.learning_rate()), fmt::format("{}", *published.lr));
    const auto device = std::find_if(machine.begin(), machine.end(), [&](const auto& fact) { return fact.first == devices_.front().str(); });
    const std::string text = device == machine.end() ? devices_.front().str() : fmt::format("{}: {}", device->first, device->second);
    differs(text.find("RTX 2060") == std::string::npos, fmt::format("device {}", text), "an RTX 2060");
    add_other_departures(published);
  }

  /// All other settings of the runs that are not those of the published ones.
  void add_other_departures(const Options& published) {
    // Named above, or no part of the published conditions.
    const std::set<std::string> named = {"epochs", "batch-size", "optimizer", "lr", "limit-samples", "seed"};
    std::set<std::string> found;
    for (const PlannedRun& run : planned_) {
      const Options same = train_options(published, run.configuration, device_names(devices_), published.seed);
      for (const SettingDifference& difference : compare_run_settings(run.settings, run_settings_text(same, job_, run.devices))) {
        // Optimizers have settings of their own.
        const bool off = difference.only_here && (difference.here == "0.0" || difference.here == "false");
        if (difference.only_there || off || named.contains(difference.name) || !found.insert(difference.name).second) continue;
        record_.departures.push_back(fmt::format("--{} {}; published: {}", difference.name, difference.here, difference.there));
      }
    }
  }

  const Options& asked_;
  const Processes& processes_;
  std::optional<FolderLock> lock_;  // of --out
  std::vector<DeviceId> devices_;
  Job job_;
  std::vector<PlannedRun> planned_;
  Record record_;
};

}  // namespace

int run_reproduce(const Options& options, const Processes& processes) {
  check_train_schedule(options);
  Reproduction reproduction(options, processes, reproduction_devices(options));
  const std::string page = options.report.empty() ? options.reproduce.out + "/report.html" : options.report;
  const std::string figures = reproduction_figures_path(options);
  check_writable("--report", page);
  reproduction.run();
  const Record& record = reproduction.record();
  Attempts attempts;
  const Json json = reproduction_json(record);
  const bool has_page = attempts.run([&] { html::write_page(page, record); });
  const bool has_json = attempts.run([&] { write_output_file("--out", figures, [&](std::ostream& file) { file << json_text(json) << '\n'; }); });
  if (options.json) {
    print_json(json);
  } else {
    const Style style = Style::of(STDOUT_FILENO);
    fmt::print("\n{}", reproduction_report(record, style));
    if (has_page && has_json) fmt::print("\n{}\n", style.prose(fmt::format("The report is in {}, the figures are in {}", page, figures)));
  }
  attempts.rethrow();
  if (record.interrupted) return interrupt_status();
  const bool whole = std::all_of(record.runs.begin(), record.runs.end(), [](const RunRecord& run) { return run.reproduced->state == "complete"; });
  return whole ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
