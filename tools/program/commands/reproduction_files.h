// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
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

/// The settings of a run by which it is recognized: the flags in force, without those that change neither results nor
/// measurements, and a hash of the data set in the place of its path.
std::string run_settings_text(const Options& options, const Job& job, const std::vector<DeviceId>& devices);
/// A setting that two texts of settings give different values, in words: "0.1", "not set". A setting that older
/// versions did not write differs only if both texts have it.
struct SettingDifference {
  std::string name;  // of the flag, without dashes
  std::string here, there;
  bool only_here = false, only_there = false;  // the other text does not have the setting
};
std::vector<SettingDifference> compare_run_settings(const std::string& here, const std::string& there);
/// Refuses a folder whose run has other settings, naming one and both values; nothing if there is no run in it. throws
/// ConfigError, DataError
void check_run_settings(const std::string& folder, const std::string& settings);
/// Makes the folder and writes settings.json. throws DataError.
void write_run_settings(const std::string& folder, const std::string& settings);

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
