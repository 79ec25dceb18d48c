// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/checkpoint_directory.h"
#include "tools/program/commands/reproduction_files.h"
#include "tools/program/record/record.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

/// The settings by which a run is recognized, with a hash of the data set in the place of its path.
SettingValues identify_run(const Options& options, const Job& job, const std::vector<DeviceId>& devices);

/// A run of a reproduction: a configuration with a seed.
struct PlannedRun {
  Configuration configuration;
  Options options;  // of vitrine train
  std::vector<DeviceId> devices;
  std::string folder;
  SettingValues settings;

  EngineConfig config(const Job& job) const;
  /// Empty if they cannot be read: then the run fails with the reason when it starts.
  std::vector<NamedCheckpoint> checkpoints() const;
  /// The steps that the run has made, as far as they are saved.
  int64_t saved_steps() const;
  /// Nothing if it cannot be read: then the run fails with the reason when its turn comes.
  std::optional<RunResult> result() const;
};

/// Refuses to start what would fill the disk: hours later a checkpoint could not be saved.   throws  DataError
void check_disk(const Options& options, const Job& job, const std::vector<PlannedRun>& runs);

/// What differs from the published conditions beside what --as-published sets.
///   machine  machine_facts() of the devices
std::vector<std::string> find_departures(const Options& options, const Job& job, const std::vector<DeviceId>& devices,
                                         const std::vector<PlannedRun>& runs, const Facts& machine);

}  // namespace vitrine::tools
