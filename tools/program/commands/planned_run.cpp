// SPDX-License-Identifier: Apache-2.0
#include "tools/program/commands/planned_run.h"

#include <filesystem>
#include <limits>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "nn/json_file.h"
#include "runtime/error.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/record/reproduction.h"
#include "tools/program/text/json_text.h"
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
    check_json_nesting(source, text);
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

}  // namespace

SettingValues identify_run(const Options& options, const Job& job, const std::vector<DeviceId>& devices) {
  SettingValues values;
  for (const RunSetting& setting : run_settings({options, job, devices}))
    values.emplace_back(setting.name, setting.value);
  return values;
}

std::vector<SettingDifference> compare_run_settings(const SettingValues& here,
                                                    const std::map<std::string, std::string>& there) {
  std::vector<SettingDifference> found;
  for (const auto& [name, value] : here) {
    const auto other = there.find(name);
    const std::string other_value = other == there.end() ? std::string() : other->second;
    if (value != other_value) found.push_back({name, value, other_value});
  }
  return found;
}

std::optional<RunResult> PlannedRun::read_result() const {
  const std::string path = folder + "/result.json";
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  RunResult result;
  std::map<std::string, std::string> recorded;
  read_json(path, read_text_file(path), [&](const Json& json) {
    recorded = json.at("settings").get<std::map<std::string, std::string>>();
    result.state = json.at("state").get<std::string>();
    result.diverged = json.at("diverged").get<std::string>();
    result.devices = parse_devices(path, json_text(json.at("devices")));
  });
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  for (const auto& [name, here, there] : compare_run_settings(settings, recorded)) {
    throw ConfigError(
        fmt::format("--out: the run in {} has another configuration: --{} is {}, there {}; use its settings, or choose "
                    "another folder",
                    folder, name, shown(here), shown(there)));
  }
  return result;
}

void PlannedRun::write_result(const RunResult& result) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw DataError(fmt::format("--out: the folder {} cannot be made ({})", folder, error.message()));
  Json json;
  json["version"] = VITRINE_VERSION;
  for (const auto& [name, value] : settings) json["settings"][name] = value;
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
  std::istringstream rows(fs::exists(options.log, error) ? read_text_file(options.log) : std::string());
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

}  // namespace vitrine::tools
