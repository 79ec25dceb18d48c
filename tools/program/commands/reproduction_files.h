// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/program/record/record.h"
#include "tools/program/run/run.h"

/// The files in which a reproduction keeps a run, in a folder of its own:
///   settings.json  what the run is; written before its first step
///   checkpoints/   one for each epoch
///   tensorboard/   event files
///   log.jsonl      steps and epochs
///   result.json    state, measurements and evaluations; written when the run ends
namespace vitrine::tools {

/// The settings by which a run is recognized: names of flags, and values.
using SettingValues = std::vector<std::pair<std::string, std::string>>;
/// A setting to which two runs give different values; "" if a run does not have it.
struct SettingDifference {
  std::string name;  // of the flag, without dashes
  std::string here, there;
};
std::vector<SettingDifference> compare_run_settings(const SettingValues& here, const SettingValues& there);
/// Refuses a folder whose run has other settings, naming one and both values; nothing if there is no run in it. throws
/// ConfigError, DataError
void check_run_settings(const std::string& folder, const SettingValues& settings);
/// Makes the folder and writes settings.json. throws DataError.
void write_run_settings(const std::string& folder, const SettingValues& settings);

/// What result.json says.
struct RunResult {
  std::string state;  // trained (its saved epochs are still to be evaluated), complete, diverged or interrupted
  std::string diverged;
  int64_t measured_steps = 0;  // trained by the process that measured the devices
  std::vector<DeviceRecord> devices;
  std::vector<SavedEpoch> saved;

  /// There is nothing left to do.
  bool done() const { return state == "complete" || state == "diverged"; }
};
/// Empty without a file. throws DataError if it cannot be read.
std::optional<RunResult> read_run_result(const std::string& folder);
void write_run_result(const std::string& folder, const RunResult& result);

/// Fills in epochs, losses of all steps, and skipped steps from log.jsonl; nothing without one. An epoch that was
/// interrupted counts as far as it went. Rows that cannot be read are left out. Returns a sentence that names them;
/// empty if there are none.
std::string read_run_log(const std::string& folder, RunRecord& run);

/// The checkpoints that the disk must still have room for: those that stay and, with `keep_last`, the one that is
/// written before an older one is removed.
///   saved  by each run that is not trained to its end
int64_t missing_checkpoints(int64_t epochs, std::optional<int64_t> keep_last, const std::vector<int64_t>& saved);

}  // namespace vitrine::tools
