// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/program/record/record.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

/// The settings by which a run is recognized: names of flags, and values.
using SettingValues = std::vector<std::pair<std::string, std::string>>;
/// With a hash of the data set in the place of its path.
SettingValues identify_run(const Options& options, const Job& job, const std::vector<DeviceId>& devices);

/// A setting to which two runs give different values; "" if a run does not have it.
struct SettingDifference {
  std::string name;  // of the flag, without dashes
  std::string here, there;
};
std::vector<SettingDifference> compare_run_settings(const SettingValues& here,
                                                    const std::map<std::string, std::string>& there);

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
  SettingValues settings;

  /// Nothing before the first step. throws DataError if the file cannot be read, ConfigError if the run in the folder
  /// has other settings
  std::optional<RunResult> read_result() const;
  void write_result(const RunResult& result) const;
  /// Fills in epochs, their rates, losses of all steps, and skipped steps. An epoch that was interrupted counts as far
  /// as it went. throws DataError if a row cannot be read, or a complete run lacks epochs
  void read_log(RunRecord& run) const;
};

}  // namespace vitrine::tools
