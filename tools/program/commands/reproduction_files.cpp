// SPDX-License-Identifier: Apache-2.0
#include "tools/program/commands/reproduction_files.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "runtime/error.h"
#include "runtime/printable.h"
#include "tools/program/render/json_report.h"
#include "tools/program/text/json_text.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

namespace fs = std::filesystem;

void write_text(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

/// Null without a file.   remedy  what to do if it is damaged
Json read_json(const std::string& path, const char* remedy) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::error_code error;
    if (fs::exists(path, error)) throw DataError(fmt::format("{}: it cannot be read", path));
    return {};
  }
  try {
    return Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  } catch (const Json::exception& problem) {
    throw DataError(fmt::format("{}: it is damaged ({}); {}", path, printable(problem.what()),
                                remedy));  // it quotes bytes of the file
  } catch (const std::exception& problem) {
    throw DataError(fmt::format("{}: it cannot be read ({}); {}", path, problem.what(), remedy));
  }
}

constexpr const char* kSettingsRemedy =
    "remove this file if the run was made with the settings of this command, otherwise the run's folder";
constexpr const char* kResultRemedy =
    "remove this file: the same command then evaluates the saved epochs again; only the measured memory and phases are "
    "lost";

double number_or_nan(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}
std::optional<double> number_if_any(const Json& json) {
  return json.is_number() ? std::optional(json.get<double>()) : std::nullopt;
}

}  // namespace

std::vector<SettingDifference> compare_run_settings(const SettingValues& here, const SettingValues& there) {
  const auto value = [](const SettingValues& settings, const std::string& name) {
    const auto found = std::find_if(settings.begin(), settings.end(), [&](const auto& s) { return s.first == name; });
    return found == settings.end() ? std::string() : found->second;
  };
  std::vector<SettingDifference> found;
  const auto add = [&](const std::string& name) {
    const std::string a = value(here, name), b = value(there, name);
    const auto known = [&](const SettingDifference& difference) { return difference.name == name; };
    if (a != b && std::none_of(found.begin(), found.end(), known)) found.push_back({name, a, b});
  };
  for (const SettingValues* const settings : {&here, &there}) {
    for (const auto& setting : *settings) add(setting.first);
  }
  return found;
}

void check_run_settings(const std::string& folder, const SettingValues& settings) {
  const std::string path = folder + "/settings.json";
  const Json before = read_json(path, kSettingsRemedy);
  if (before.is_null()) return;
  SettingValues recorded;
  try {
    for (const auto& [name, value] : before.items()) recorded.emplace_back(name, value.get<std::string>());
  } catch (const Json::exception& problem) {
    throw DataError(fmt::format("{}: it has no settings ({}); {}", path, problem.what(), kSettingsRemedy));
  }
  const std::vector<SettingDifference> differences = compare_run_settings(settings, recorded);
  if (differences.empty()) return;
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  const SettingDifference& first = differences.front();
  throw ConfigError(
      fmt::format("--out: the run in {} has another configuration: --{} is {}, there {}; use its settings, or choose "
                  "another folder",
                  folder, first.name, shown(first.here), shown(first.there)));
}

void write_run_settings(const std::string& folder, const SettingValues& settings) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw DataError(fmt::format("--out: the folder {} cannot be made ({})", folder, error.message()));
  Json json = Json::object();
  for (const auto& [name, value] : settings) json[name] = value;
  write_text(folder + "/settings.json", json_text(json, 1));
}

std::optional<RunResult> read_run_result(const std::string& folder) {
  const std::string path = folder + "/result.json";
  const Json json = read_json(path, kResultRemedy);
  if (json.is_null()) return std::nullopt;
  const auto refuse = [&](const std::exception& problem) {
    return DataError(fmt::format("{}: it is not a run's result ({}); {}", path, problem.what(), kResultRemedy));
  };
  try {
    RunResult result;
    result.state = json.at("state").get<std::string>();
    result.diverged = json.at("diverged").get<std::string>();
    result.devices = parse_devices(path, json_text(json.at("devices")));
    result.measured_steps = json.at("measured_steps").get<int64_t>();
    for (const Json& saved : json.at("saved_epochs")) {
      result.saved.push_back({saved.at("epoch").get<int64_t>(), saved.at("checkpoint").get<std::string>(),
                              number_or_nan(saved.at("test_loss")), number_or_nan(saved.at("test_accuracy")),
                              number_if_any(saved.at("test_top5_accuracy"))});
    }
    return result;
  } catch (const Json::exception& problem) {
    throw refuse(problem);
  } catch (const DataError& problem) {
    throw refuse(problem);
  }
}

void write_run_result(const std::string& folder, const RunResult& result) {
  Json json;
  json["version"] = VITRINE_VERSION;
  json["state"] = result.state;
  json["diverged"] = result.diverged;
  json["measured_steps"] = result.measured_steps;
  json["saved_epochs"] = saved_epochs_json(result.saved);
  json["devices"] = Json::parse(devices_text(result.devices));
  write_text(folder + "/result.json", json_text(json, 1));
}

std::string read_run_log(const std::string& folder, RunRecord& run) {
  const std::string path = folder + "/log.jsonl";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  std::ifstream file(path, std::ios::binary);
  std::map<int64_t, double> losses;
  std::map<int64_t, double> scales;
  std::map<int64_t, EpochRecord> epochs;  // the row of an interrupted epoch is replaced by that of the whole epoch
  std::vector<int64_t> damaged;           // numbers of lines
  const auto add = [&](const Json& row) {
    if (row.at("kind") == "step") {
      const auto step = row.at("step").get<int64_t>();
      const Json& scale = row.at("loss_scale");
      losses[step] = number_or_nan(row.at("loss"));
      if (scale.is_number()) scales[step] = scale.get<double>();
    } else if (row.at("kind") == "epoch") {
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
      epochs[epoch.epoch] = epoch;
    }
  };
  int64_t number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++number;
    try {
      add(Json::parse(line));
    } catch (const Json::exception&) {
      damaged.push_back(number);
    }
  }
  run.first_step = 0;
  for (const auto& [step, loss] : losses) run.step_losses.push_back(loss);
  int64_t steps_before = 0, epochs_before = 0;
  for (auto& [epoch_number, epoch] : epochs) {
    // Several epochs where rows are missing: all have the same number of steps.
    epoch.steps = epoch.steps_wanted =
        (epoch.last_step - steps_before) / std::max<int64_t>(epoch_number - epochs_before, 1);
    steps_before = epoch.last_step;
    epochs_before = epoch_number;
    run.epochs.push_back(epoch);
  }
  // A scale falls only after a step that was skipped.
  double scale = 0.0;
  for (const auto& [step, next] : scales) {
    if (run.reproduced && next < scale) ++run.reproduced->skipped_steps;
    scale = next;
  }
  if (damaged.empty()) return {};
  return fmt::format(
      "{}: line {}{} cannot be read and {} left out of curves and times; remove the run's folder to make the run again",
      path, damaged.front(), damaged.size() == 1 ? "" : fmt::format(" and {} more", damaged.size() - 1),
      damaged.size() == 1 ? "is" : "are");
}

int64_t missing_checkpoints(int64_t epochs, std::optional<int64_t> keep_last, const std::vector<int64_t>& saved) {
  const int64_t kept = std::min(epochs, keep_last.value_or(epochs));
  int64_t missing = 0;
  for (const int64_t count : saved) missing += std::max<int64_t>(0, kept - count);
  return kept < epochs && !saved.empty() ? missing + 1 : missing;
}

}  // namespace vitrine::tools
