// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "nn/checkpoint_directory.h"
#include "runtime/error.h"
#include "runtime/printable.h"
#include "runtime/trace/span.h"
#include "tools/program/commands/commands.h"
#include "tools/program/commands/planned_run.h"
#include "tools/program/flags/advice.h"
#include "tools/program/record/findings.h"
#include "tools/program/record/reproduction.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/json_report.h"
#include "tools/program/render/terminal_report.h"
#include "tools/program/run/attempts.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/interrupt.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/tables.h"
#include "tools/program/train/train_job.h"
#include "tools/program/train/training.h"

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

/// What differs from the published conditions beside what --as-published sets.
std::vector<std::string> find_departures(const Options& asked, const Job& job, const std::vector<PlannedRun>& runs,
                                         const std::string& device) {
  std::vector<std::string> departures;
  const auto differs = [&](bool different, const std::string& here, const std::string& published) {
    if (different) departures.push_back(fmt::format("{}; published: {}", here, published));
  };
  const Options published = published_options(asked);
  differs(asked.model != published.model, "model " + asked.model, published.model);
  differs(!asked.data.starts_with("cifar10"), "data " + asked.data, "CIFAR-10");
  differs(job.model.height != 227, fmt::format("images of {0}x{0}", job.model.height), "227x227");
  differs(asked.limit_samples.has_value(),
          fmt::format("the first {} training images", format_count(asked.limit_samples.value_or(0))), "all 50,000");
  differs(device.find("RTX 2060") == std::string::npos, "device " + device, "an RTX 2060");
  std::set<std::string> found;
  for (const PlannedRun& run : runs) {
    const SettingValues same = identify_run(
        train_options(published, run.configuration, device_names(run.devices), run.options.seed), job, run.devices);
    for (const auto& [name, here, there] : compare_run_settings(run.settings, {same.begin(), same.end()})) {
      // Optimizers and schedules have settings of their own.
      const bool off = there.empty() && (here == "0" || here == "off");
      if (here.empty() || off || !found.insert(name).second) continue;
      differs(true, fmt::format("--{} {}", name, here), there.empty() ? "not set" : there);
    }
  }
  return departures;
}

class Reproduction {
 public:
  Reproduction(const Options& asked, const Processes& processes, std::vector<DeviceId> devices)
      : asked_(asked), processes_(processes), devices_(std::move(devices)), job_(open_job(asked)) {
    for (int64_t s = 0; s < asked.reproduce.seeds; ++s) {
      for (const Configuration& configuration : configurations(asked))
        add(configuration, asked.seed + static_cast<uint64_t>(s));
    }
    try {
      directory_.emplace(asked.reproduce.out, 1.0);
    } catch (const DataError&) {
      rethrow_with_prefix(std::current_exception(), "--out ");
    }
    find_runs_to_make();
    find_facts();
  }

  /// Makes all runs that are not there yet, until interrupted.
  void run() {
    for (size_t i = 0; i < planned_.size(); ++i) {
      RunRecord& record = record_.runs[i];
      try {
        make(planned_[i], record);
      } catch (const Error& error) {
        fail(record, in_reproduce_words(error.reason()));
      } catch (const SearchStopped&) {
        record.reproduced->state = "interrupted";
      } catch (const std::exception& error) {
        fail(record, error.what());
      }
    }
    record_.interrupted = interrupted();
    conclude(record_);
  }

  const Record& record() const { return record_; }

 private:
  void add(const Configuration& configuration, uint64_t seed) {
    PlannedRun run{configuration, train_options(asked_, configuration, device_names(devices_), seed), devices_, {}, {}};
    if (configuration.mode == "single") run.devices.resize(1);
    check_combinations(run.options);
    device_group_options(run.options, run.devices);
    run.folder = fs::path(run.options.log).parent_path().string();
    run.settings = identify_run(run.options, job_, run.devices);
    const Scheme scheme = resolve_scheme(run.options, run.devices);
    RunRecord& record = record_.runs.emplace_back(
        configured_run(run.options, engine_config(run.options, job_, scheme, resolve_precision(run.options)), {}));
    record.name = configuration.name();
    if (asked_.reproduce.seeds > 1) record.name += fmt::format(" seed {}", seed);
    ReproducedRun& of = record.reproduced.emplace();
    of.mode = configuration.mode, of.precision = configuration.precision;
    of.seed = seed;
    of.folder = run.folder;
    planned_.push_back(std::move(run));
  }

  /// Refuses runs with other settings before the first one starts. One whose result cannot be read fails alone, when
  /// its turn comes.
  void find_runs_to_make() {
    for (const PlannedRun& run : planned_) {
      try {
        const std::optional<RunResult> result = run.read_result();
        if (!result || !result->done()) ++to_make_;
      } catch (const DataError&) {
      }
    }
  }

  void print_progress(const std::string& text) const {
    fmt::print(asked_.json ? stderr : stdout, "{}\n",
               Style::of(asked_.json ? STDERR_FILENO : STDOUT_FILENO).prose(text));
    std::fflush(asked_.json ? stderr : stdout);
  }

  static void fail(RunRecord& record, const std::string& reason) {
    record.reproduced->state = "failed";
    record.reproduced->failure = printable_lines(reason);  // it may quote bytes of a damaged file
    fmt::print(stderr, "vitrine: {} failed: {}\n", record.name, record.reproduced->failure);
    std::fflush(stderr);
  }

  /// Trains what is left of a run, and fills its record from its files.
  void make(const PlannedRun& planned, RunRecord& record) {
    std::optional<RunResult> result = planned.read_result();
    if ((!result || !result->done()) && !interrupted()) {
      print_progress(fmt::format("{} ({} of {})", record.name, made_ + 1, to_make_));
      result = train(planned);
      if (!interrupted() && ++made_ < to_make_) print_time_left();
    }
    if (!result) return;
    record.reproduced->state = result->state;
    record.diverged = result->diverged;
    record.devices = result->devices;
    planned.read_log(record);
  }

  /// A run that lasts as long as the mean of those made so far.
  void print_time_left() const {
    const double seconds = static_cast<double>(steady_now_ns() - begin_ns_) * 1e-9;
    print_progress(
        fmt::format("{} of {} are made; the others take about {}", made_, counted(to_make_, "run"),
                    format_duration(seconds / static_cast<double>(made_) * static_cast<double>(to_make_ - made_))));
  }

  RunResult train(const PlannedRun& planned) {
    planned.write_result({});
    auto directory = open_checkpoint_directory(planned.options, processes_);
    auto group = std::make_unique<DeviceGroup>(device_group_options(planned.options, planned.devices));
    const std::string name = planned.configuration.mode == "single" ? "single device" : planned.configuration.mode;
    Attempts attempts;
    const Trained trained =
        train_job(planned.options, job_, {planned.devices, std::move(group), std::move(directory), {}, name},
                  processes_, attempts);
    attempts.rethrow();
    const RunRecord& run = trained.record->run();
    const char* const state = !run.diverged.empty()       ? "diverged"
                              : trained.status != kExitOk ? "interrupted"
                                                          : "complete";
    RunResult result{state, run.diverged, run.devices};
    planned.write_result(result);
    return result;
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
    if (record_.as_published) {
      const std::string name = devices_.front().str();
      const auto device = std::find_if(machine.begin(), machine.end(), [&](const auto& f) { return f.first == name; });
      record_.departures = find_departures(
          asked_, job_, planned_, device == machine.end() ? name : fmt::format("{}: {}", name, device->second));
    }
    if (devices_.size() == 1 && !record_.as_published) {
      record_.notes.push_back(fmt::format(
          "All modes run on one device, {}; give --devices to see dp and ddp divide the work", devices_.front().str()));
    }
  }

  const Options& asked_;
  const Processes& processes_;
  std::optional<CheckpointDirectory> directory_;  // --out, which this process alone works in
  std::vector<DeviceId> devices_;
  Job job_;
  std::vector<PlannedRun> planned_;
  Record record_;
  int64_t to_make_ = 0, made_ = 0, begin_ns_ = steady_now_ns();
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
  const bool whole = std::all_of(record.runs.begin(), record.runs.end(), is_complete);
  return whole ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
