// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/program/flags/options.h"
#include "tools/program/record/job.h"
#include "tools/program/text/json_text.h"

/// The effective settings, as the table of settings has them.
namespace vitrine::tools {

/// What another value means for a run that continues from a checkpoint.
enum class Effect {
  local,     // nothing: it is about a process, its outputs, or what another setting covers
  none,      // the same results
  rounding,  // the same mathematics: results differ by rounding
  rate,      // another learning rate or schedule from here on
  result,    // other results: refused
};

/// What the effective values depend on.
struct SettingContext {
  const Options& options;
  const Job& job;
  const std::vector<DeviceId>& devices;  // of this process
  std::optional<int> world_size = {};    // devices of all processes, if there are several
  // Known when the run is open:
  int processes = 1;
  std::optional<int64_t> workspace_bytes = {};  // of a device, as planned
  std::optional<int> threads = {};              // of the first device
};

/// The configuration as --json prints it. docs/json.md describes the keys.
Json config_json(const SettingContext& configuration, const SettingTable& table = setting_table());

/// A setting of a training run, by which it is compared with another run.
struct RunSetting {
  std::string name;  // of the flag, without dashes; or a key of the JSON
  std::string value;
  Effect effect = Effect::result;
};

/// The settings of a training run as effective values: a default that is given has the same text as one that is not,
/// and lists whose order does not matter have one order. A setting that the run does not have has the value "".
std::vector<RunSetting> run_settings(const SettingContext& configuration, const SettingTable& table = setting_table());

/// A value as text; "" for null, and for what does not exist.
std::string text_of(const Json& value);

/// Names of settings, and values.
using SettingValues = std::vector<std::pair<std::string, std::string>>;
SettingValues values_of(const std::vector<RunSetting>& settings);
/// Flags and values on which all processes must agree.
SettingValues agreed_settings(const SettingContext& configuration, const SettingTable& table = setting_table());

}  // namespace vitrine::tools
