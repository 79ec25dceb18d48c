// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "data/sampler.h"
#include "nn/checkpoint_directory.h"
#include "runtime/error.h"
#include "runtime/printable.h"
#include "tools/program/checkpoint/checkpoints.h"
#include "tools/program/checkpoint/folder_lock.h"
#include "tools/program/checkpoint/run_state.h"
#include "tools/program/commands/commands.h"
#include "tools/program/commands/planned_run.h"
#include "tools/program/commands/reproduction_files.h"
#include "tools/program/flags/advice.h"
#include "tools/program/record/findings.h"
#include "tools/program/record/reproduction.h"
#include "tools/program/record/time_left.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/json_report.h"
#include "tools/program/render/terminal_report.h"
#include "tools/program/run/attempts.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/evaluate.h"
#include "tools/program/run/interrupt.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/run/train_job.h"
#include "tools/program/run/training.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {

namespace {

namespace fs = std::filesystem;

/// The devices of dp and ddp.
std::vector<DeviceId> reproduction_devices(const Options& o) {
  const int gpus = cuda_device_count();
  const bool one = o.reproduce.as_published;
  const std::string usual = gpus > 0 ? (one ? "cuda:0" : "cuda:all") : (one ? "cpu:0" : "cpu:0-1");
  const std::vector<DeviceId> devices = parse_device_list(o.devices.empty() ? usual : o.devices, gpus);
  if (one && devices.size() > 1) {
    throw ConfigError(
        fmt::format("--as-published: the published figures are those of one device, but --devices {} has {}; name one",
                    o.devices, devices.size()));
  }
  return devices;
}

/// Warnings and failures may quote bytes of a damaged file.
void print_file_warning(const std::string& text) {
  fmt::print(stderr, "vitrine: warning: {}\n", printable_lines(text));
  std::fflush(stderr);
}

class Reproduction {
 public:
  Reproduction(const Options& asked, const Processes& processes, std::vector<DeviceId> devices)
      : asked_(asked), processes_(processes), devices_(std::move(devices)), job_(open_job(asked)) {
    const std::vector<std::string> names = device_names(devices_);
    for (int64_t s = 0; s < asked.reproduce.seeds; ++s) {
      for (const Configuration& configuration : configurations(asked))
        add(configuration, names, asked.seed + static_cast<uint64_t>(s));
    }
    std::error_code error;
    fs::create_directories(asked.reproduce.out, error);
    if (error)
      throw DataError(fmt::format("--out {}: the folder cannot be made ({})", asked.reproduce.out, error.message()));
    lock_.emplace("--out", asked.reproduce.out);
    check_settings();
    check_disk(asked, job_, planned_);
    find_facts();
  }

  /// Makes all runs that are not there yet, until interrupted.
  void run() {
    const int64_t steps = *asked_.epochs * batches_per_epoch({asked_.shuffle, asked_.drop_last, asked_.seed},
                                                             job_.data.train.size(), asked_.batch_size);
    int64_t steps_left = 0;
    std::vector<bool> waits(planned_.size(), false);
    for (size_t i = 0; i < planned_.size(); ++i) {
      const std::optional<RunResult> result = planned_[i].result();
      waits[i] = !result || !result->done();
      if (waits[i]) steps_left += steps - planned_[i].saved_steps();
    }
    const int64_t wanted = std::count(waits.begin(), waits.end(), true);
    const double test = static_cast<double>(job_.data.test.size()), train = static_cast<double>(job_.data.train.size());
    // A forward pass is about a third of a step.
    TimeLeft time_left(test / train / 3.0, steps / *asked_.epochs, steps_left);
    for (size_t i = 0, number = 0; i < planned_.size() && !interrupted(); ++i) {
      RunRecord& record = record_.runs[i];
      if (!waits[i]) {
        attempt(record, [&] { load(planned_[i], record); });
        continue;
      }
      const int64_t before = planned_[i].saved_steps();
      print_progress(fmt::format("{} ({} of {})", record.name, ++number, wanted));
      time_left.begin_run(record.name);
      const TrainHooks hooks{
          .steps_done = [&](int64_t) { time_left.add_step(wanted - static_cast<int64_t>(number) + 1); }};
      attempt(record, [&] { make(planned_[i], record, hooks); });
      time_left.drop_steps(steps - before - time_left.steps_of_run());
      if (!interrupted()) time_left.end_run(static_cast<int64_t>(number), wanted);
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
    run.settings = identify_run(run.options, job_, run.devices);
    RunRecord& record = record_.runs.emplace_back(configured_run(run.options, run.config(job_), {}));
    record.name = configuration.name();
    if (asked_.reproduce.seeds > 1) record.name += fmt::format(" seed {}", seed);
    ReproducedRun& of = record.reproduced.emplace();
    of.mode = configuration.mode, of.precision = configuration.precision;
    of.seed = seed;
    of.folder = run.folder;
    planned_.push_back(std::move(run));
  }

  void print_progress(const std::string& text) const {
    fmt::print(asked_.json ? stderr : stdout, "{}\n",
               Style::of(asked_.json ? STDERR_FILENO : STDOUT_FILENO).prose(text));
    std::fflush(asked_.json ? stderr : stdout);
  }

  /// Refuses runs with other settings before the first one starts. One whose settings cannot be read fails alone, when
  /// its turn comes.
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
        fmt::format("{}/log.jsonl lacks {} of {} epochs: the run's time is shown as not measured; remove the run's "
                    "folder to make the run again",
                    planned.folder, record.reproduced->lost_epochs, *asked_.epochs));
  }

  /// The result of an earlier call.
  static void load(const PlannedRun& planned, RunRecord& record) {
    check_run_settings(planned.folder, planned.settings);
    if (const std::optional<RunResult> result = read_run_result(planned.folder)) {
      take(*result, record);
    } else if (planned.saved_steps() > 0) {
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

  /// Trains, and returns the result. If a checkpoint or the log could not be written, the result is written as that of
  /// an interrupted run, and the error is thrown.
  ///   before  the result of an earlier call
  RunResult train(const PlannedRun& planned, const TrainHooks& hooks, const RunResult& before) {
    auto directory = open_checkpoint_directory(planned.options, processes_);
    auto group = std::make_unique<DeviceGroup>(device_group_options(planned.options, planned.devices));
    const std::string name = planned.configuration.mode == "single" ? "single device" : planned.configuration.mode;
    Attempts attempts;
    const Trained trained =
        train_job(planned.options, job_, {planned.devices, std::move(group), std::move(directory), {}, name},
                  processes_, attempts, hooks);
    RunResult result;
    if (trained.record) {
      const RunRecord& run = trained.record->run();
      result.state = !run.diverged.empty() ? "diverged" : trained.status != kExitOk ? "interrupted" : "trained";
      result.diverged = run.diverged;
      result.devices = run.devices;
      result.measured_steps = static_cast<int64_t>(run.step_losses.size());
      // A run whose last steps were made by an earlier call has its measurements from there.
      if (measured_steps(run.devices) == 0 && before.measured_steps > result.measured_steps) {
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

  /// Evaluates every checkpoint at the end of an epoch from its files, as vitrine eval does. A damaged one is left out
  /// with a warning. Nothing if the program was interrupted.
  ///   needs_last  the newest must be whole, and that of the last epoch
  /// throws  DataError if it is not
  std::optional<std::vector<SavedEpoch>> evaluate_saved(const PlannedRun& planned, const std::string& name,
                                                        bool needs_last) {
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
          load_weights(*run, {weights, {.allow_non_finite = options.allow_non_finite}});
        } else {
          auto group = std::make_unique<DeviceGroup>(device_group_options(options, planned.devices));
          run = open_evaluation(options, job_, std::move(group), weights);
        }
      } catch (const DataError& error) {
        if (needs_last && &checkpoint == &checkpoints.back()) {
          throw DataError(
              fmt::format("{}; the same command continues from the newest whole checkpoint and trains this epoch again",
                          error.what()));
        }
        print_file_warning(
            fmt::format("{}: {} is not evaluated: {}", name, checkpoint_name(checkpoint.step), error.what()));
        continue;
      }
      const auto found =
          evaluate_test_set(options, job_, *run, fmt::format("{}, evaluating epoch {}", name, epoch), false);
      if (!found) return std::nullopt;
      all.push_back({epoch, checkpoint_name(checkpoint.step), found->loss, found->accuracy, found->top5});
    }
    if (run) run->engine->finish();
    if (needs_last && (all.empty() || all.back().epoch != *asked_.epochs)) {
      throw DataError(fmt::format(
          "{}: the checkpoint of the last epoch, {}, is missing; the same command trains what no checkpoint has again",
          options.checkpoints.directory, *asked_.epochs));
    }
    return all;
  }

  void find_facts() {
    DeviceGroup group(device_group_options(asked_, devices_));
    print_device_warnings(asked_, group);
    const Facts machine = machine_facts(group);
    record_.kind = Record::Kind::reproduction;
    const size_t count = planned_.size() / static_cast<size_t>(asked_.reproduce.seeds);
    record_.title = fmt::format("{} in {}", job_.model.name, counted(count, "configuration"));
    record_.command_line = command_line(asked_);
    record_.facts = {
        {"model and data", describe_job(job_, FlatLayout(job_.model.net->parameters(), 0))},
        {"runs", fmt::format("{} in {}, {} seed{}; single runs on {}", asked_.reproduce.modes, asked_.precisions,
                             asked_.reproduce.seeds, asked_.reproduce.seeds == 1 ? "" : "s", devices_.front().str())},
        {"training", fmt::format("{} epoch{}, batch {}, {}", *asked_.epochs, *asked_.epochs == 1 ? "" : "s",
                                 asked_.batch_size, describe_training(asked_))}};
    record_.facts.insert(record_.facts.end(), machine.begin(), machine.end());
    record_.config = config_json({asked_, job_, devices_});
    record_.dataset_bytes = dataset_bytes(job_.data);
    record_.seeds = asked_.reproduce.seeds;
    record_.as_published = asked_.reproduce.as_published;
    if (record_.as_published) record_.departures = find_departures(asked_, job_, devices_, planned_, machine);
    if (devices_.size() == 1 && !record_.as_published) {
      record_.notes.push_back(fmt::format(
          "All modes run on one device, {}; give --devices to see dp and ddp divide the work", devices_.front().str()));
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
  const bool has_json = attempts.run(
      [&] { write_output_file("--out", figures, [&](std::ostream& file) { file << json_text(json) << '\n'; }); });
  if (options.json) {
    print_json(json);
  } else {
    const Style style = Style::of(STDOUT_FILENO);
    fmt::print("\n{}", reproduction_report(record, style));
    if (has_page && has_json)
      fmt::print("\n{}\n", style.prose(fmt::format("The report is in {}, the figures are in {}", page, figures)));
  }
  attempts.rethrow();
  if (record.interrupted) return interrupt_status();
  const bool whole = std::all_of(record.runs.begin(), record.runs.end(),
                                 [](const RunRecord& run) { return run.reproduced->state == "complete"; });
  return whole ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
