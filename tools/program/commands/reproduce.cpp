// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "nn/atomic_file.h"
#include "nn/checkpoint_directory.h"
#include "nn/json_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/printable.h"
#include "runtime/trace/span.h"
#include "tools/program/checkpoint/run_settings.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/advice.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/record/findings.h"
#include "tools/program/record/record.h"
#include "tools/program/record/reproduction.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/json_report.h"
#include "tools/program/render/terminal_report.h"
#include "tools/program/run/attempts.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/interrupt.h"
#include "tools/program/run/run.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/tables.h"
#include "tools/program/train/train_job.h"
#include "tools/program/train/training.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy = "remove the run's folder to make the run again";

/// Calls `read` with a text that is JSON.
///   source  names the text in messages
/// throws  DataError that ends with the remedy
template <class Read>
void read_json(const std::string& source, const std::string& text, const Read& read) {
  try {
    check_json_text(source, text);
    read(Json::parse(text));
  } catch (const Json::exception& problem) {  // it quotes bytes of the file
    throw DataError(fmt::format("{}: it is damaged ({}); {}", source, describe_json_error(problem), kRemedy));
  } catch (const DataError& problem) {
    throw DataError(fmt::format("{}; {}", problem.what(), kRemedy));
  }
}

double number_or_nan(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}
std::optional<double> number_if_any(const Json& json) {
  return json.is_number() ? std::optional(json.get<double>()) : std::nullopt;
}

EpochRecord epoch_of_row(const Json& row) {
  EpochRecord epoch;
  epoch.epoch = row.at("epoch").get<int64_t>();
  epoch.samples = row.at("samples").get<int64_t>();
  epoch.seconds = row.at("train_seconds").get<double>();
  // The mean, in the form that a record has.
  epoch.totals.loss_sum = number_or_nan(row.at("loss"));
  epoch.totals.valid = 1;
  epoch.test_loss = number_if_any(row.at("test_loss"));
  epoch.test_accuracy = number_if_any(row.at("test_accuracy"));
  epoch.test_top5 = number_if_any(row.at("test_top5_accuracy"));
  epoch.last_step = row.at("step").get<int64_t>();
  return epoch;
}

/// What result.json says of a run.
struct RunResult {
  std::string state = "interrupted";  // or complete, or diverged
  std::string diverged;               // why training stopped
  std::vector<DeviceRecord> devices;  // as the last call measured them

  bool done() const { return state != "interrupted"; }
};

/// A run of a reproduction, a configuration with a seed, in a folder of its own:
///   result.json    its settings, written before the first step; when it ends also its state and measurements
///   log.jsonl      steps and epochs
///   checkpoints/   one for each epoch
///   tensorboard/   event files
struct PlannedRun {
  Configuration configuration;
  Options options;  // of vitrine train
  std::vector<DeviceId> devices;
  std::string folder;
  std::vector<RunSetting> settings;

  /// Nothing before the first step. throws DataError if the file cannot be read, ConfigError if the run in the folder
  /// has other settings
  std::optional<RunResult> read_result() const;
  void write_result(const RunResult& result) const;
  /// Fills in epochs, their rates, losses of all steps, and skipped steps. An epoch that was interrupted counts as far
  /// as it went. throws DataError if a row cannot be read, or a complete run lacks epochs
  void read_log(RunRecord& run) const;
};

std::optional<RunResult> PlannedRun::read_result() const {
  const std::string path = folder + "/result.json";
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  RunResult result;
  SettingValues recorded;
  read_json(path, read_regular_file(path, kLargestJson), [&](const Json& json) {
    const auto values = json.at("settings").get<std::map<std::string, std::string>>();
    recorded.assign(values.begin(), values.end());
    result.state = json.at("state").get<std::string>();
    result.diverged = json.at("diverged").get<std::string>();
    result.devices = parse_devices(path, json_text(json.at("devices")));
  });
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  for (const SettingChange& change : find_changes(recorded, settings)) {
    throw ConfigError(
        fmt::format("--out: the run in {} has another configuration: --{} is {}, there {}; use its settings, or choose "
                    "another folder",
                    folder, change.name, shown(change.now), shown(change.before)));
  }
  return result;
}

void PlannedRun::write_result(const RunResult& result) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw DataError(fmt::format("--out: the folder {} cannot be made ({})", folder, error.message()));
  Json json;
  json["version"] = VITRINE_VERSION;
  for (const auto& [name, value] : values_of(settings)) json["settings"][name] = value;
  json["state"] = result.state;
  json["diverged"] = result.diverged;
  json["devices"] = Json::parse(devices_text(result.devices));
  AtomicFile file(folder + "/result.json");
  file.write(json_text(json, 1));
  file.commit();
}

void PlannedRun::read_log(RunRecord& run) const {
  std::map<int64_t, double> losses, scales;
  std::map<int64_t, EpochRecord> epochs;  // the row of an interrupted epoch is replaced by that of the whole epoch
  const auto add = [&](const Json& row) {
    if (row.at("kind") == "step") {
      const auto step = row.at("step").get<int64_t>();
      losses[step] = number_or_nan(row.at("loss"));
      if (const auto scale = number_if_any(row.at("loss_scale"))) scales[step] = *scale;
    } else if (row.at("kind") == "epoch") {
      const EpochRecord epoch = epoch_of_row(row);
      epochs[epoch.epoch] = epoch;
    }
  };
  std::error_code error;
  std::istringstream rows(fs::exists(options.log, error) ? read_regular_file(options.log, kLargestTextFile)
                                                         : std::string());
  int64_t number = 0;
  for (std::string line; std::getline(rows, line) && !rows.eof();)  // a killed process may leave half a line
    read_json(fmt::format("{}, line {}", options.log, ++number), line, add);
  run.first_step = 0;
  for (const auto& [step, loss] : losses) run.step_losses.push_back(loss);
  int64_t steps = 0;
  for (auto& [epoch_number, epoch] : epochs) {
    epoch.steps = epoch.steps_wanted = epoch.last_step - steps;
    steps = epoch.last_step;
    run.epochs.push_back(epoch);
    run.rates.rounds.push_back(epoch.samples_per_second());
  }
  if (const auto count = static_cast<int64_t>(epochs.size()); is_complete(run) && count != *options.epochs)
    throw DataError(fmt::format("{}: it has {} of {} epochs; {}", options.log, count, *options.epochs, kRemedy));
  // A scale falls only after a step that was skipped.
  double scale = 0.0;
  for (const auto& [step, next] : scales) {
    if (next < scale) ++run.reproduced->skipped_steps;
    scale = next;
  }
}

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
    const Options same = train_options(published, run.configuration, device_names(run.devices), run.options.seed);
    for (const SettingChange& change : find_changes(values_of(run_settings({same, job, run.devices})), run.settings)) {
      // Optimizers and schedules have settings of their own.
      const bool off = change.before.empty() && (change.now == "0" || change.now == "off");
      if (change.now.empty() || off || !found.insert(change.name).second) continue;
      differs(true, fmt::format("--{} {}", change.name, change.now), change.before.empty() ? "not set" : change.before);
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
    with_prefix<DataError>("--out ", [&] { directory_.emplace(asked.reproduce.out, 1.0); });
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
        fail(record, in_words_with_modes(error.reason()));
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
    run.settings = run_settings({run.options, job_, run.devices});
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
  }

  /// Trains what is left of a run, and fills its record from its files.
  void make(const PlannedRun& planned, RunRecord& record) {
    std::optional<RunResult> result = planned.read_result();
    if ((!result || !result->done()) && !interrupted()) {
      print_progress(fmt::format("{} ({} of {})", record.name, ++made_, to_make_));
      result = train(planned);
      if (!interrupted() && made_ < to_make_) print_time_left();
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
    DeviceGroupOptions group_options = device_group_options(planned.options, planned.devices);
    group_options.host_bytes = host_copies(planned.options, job_);
    auto group = std::make_unique<DeviceGroup>(group_options);
    const std::string name = planned.configuration.mode == "single" ? "single device" : planned.configuration.mode;
    Attempts attempts;
    const Trained trained =
        train_job(planned.options, job_, {planned.devices, std::move(group), std::move(directory), {}, name},
                  processes_, attempts);
    attempts.rethrow();
    const RunRecord& run = trained.record->run();
    if (!run.failure.empty()) throw DataError(run.failure);
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
    record_.notes = group.warnings();
    if (record_.seeds == 1) record_.notes.push_back("One run each: --seeds 3 shows how far chance moves these figures");
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
