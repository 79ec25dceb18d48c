// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/flags/configuration.h"
#include "tools/program/run/run.h"

/// Compares the settings of a checkpoint with the run that continues it.
namespace vitrine::tools {

/// The settings of an open run, by which a checkpoint is compared with the run that continues it.
std::vector<RunSetting> run_settings(const Options& options, const Job& job, Run& run);

/// A hash of the names and shapes of a model's parameters. A checkpoint continues only with the same ones.
std::string parameters_hash(const FlatLayout& layout);

/// A setting that differs.
struct SettingChange {
  std::string name, before, now;
  Effect effect = Effect::result;
  bool fixed = false;  // the parameters have other shapes because of it
};

/// The differences between settings that were recorded and those of a run. A setting that only one of them knows
/// differs from "".
std::vector<SettingChange> find_changes(const SettingValues& before, const std::vector<RunSetting>& now);
/// find_changes() between a checkpoint and the run that continues it.
///   checkpoint       its folder, for the remedy
///   same_parameters  parameters_hash() of the run is the checkpoint's
/// throws  ConfigError when the parameters are not the same, and when settings that change results differ, other than
///         the learning rate and its schedule: with all of them, both values of each, and the remedy
std::vector<SettingChange> compare_settings(const SettingValues& before, const std::vector<RunSetting>& now,
                                            const std::string& checkpoint, bool same_parameters = true);

/// "--lr is 0.01, in the checkpoint 0.001: from here on": one for each change, for stderr.
std::vector<std::string> describe_changes(const std::vector<SettingChange>& changes);

/// Whether a setting is among the changes.
bool has_changed(const std::vector<SettingChange>& changes, const std::string& name);

}  // namespace vitrine::tools
