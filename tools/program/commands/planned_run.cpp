// SPDX-License-Identifier: Apache-2.0
#include "tools/program/commands/planned_run.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/units.h"
#include "tools/program/checkpoint/checkpoints.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/run/describe.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {

namespace {

namespace fs = std::filesystem;

/// All other settings of the runs that are not those of the published ones.
void add_other_departures(const Options& published, const Job& job, const std::vector<DeviceId>& devices,
                          const std::vector<PlannedRun>& runs, std::vector<std::string>& departures) {
  // Named above, or no part of the published conditions.
  const std::set<std::string> named = {"epochs", "batch-size", "optimizer", "lr", "limit-samples", "seed"};
  std::set<std::string> found;
  for (const PlannedRun& run : runs) {
    const Options same = train_options(published, run.configuration, device_names(devices), published.seed);
    for (const SettingDifference& difference :
         compare_run_settings(run.settings, identify_run(same, job, run.devices))) {
      // Optimizers and schedules have settings of their own.
      const bool off = difference.there.empty() && (difference.here == "0" || difference.here == "off");
      if (difference.here.empty() || off || named.contains(difference.name) || !found.insert(difference.name).second)
        continue;
      departures.push_back(fmt::format("--{} {}; published: {}", difference.name, difference.here,
                                       difference.there.empty() ? "not set" : difference.there));
    }
  }
}

}  // namespace

SettingValues identify_run(const Options& options, const Job& job, const std::vector<DeviceId>& devices) {
  SettingValues values;
  for (const RunSetting& setting : run_settings({options, job, devices}))
    values.emplace_back(setting.name, setting.value);
  return values;
}

EngineConfig PlannedRun::config(const Job& job) const {
  return engine_config(options, job, resolve_scheme(options, devices), resolve_precision(options));
}

std::vector<NamedCheckpoint> PlannedRun::checkpoints() const {
  try {
    return list_checkpoints(options.checkpoints.directory);
  } catch (const DataError&) {
    return {};
  }
}

int64_t PlannedRun::saved_steps() const {
  const std::vector<NamedCheckpoint> saved = checkpoints();
  return saved.empty() ? 0 : saved.back().step;
}

std::optional<RunResult> PlannedRun::result() const {
  try {
    return read_run_result(folder);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

void check_disk(const Options& o, const Job& job, const std::vector<PlannedRun>& runs) {
  const int64_t bytes = checkpoint_bytes(FlatLayout(job.model.net->parameters(), 0), BufferLayout(*job.model.net),
                                         runs.front().config(job));
  std::vector<int64_t> saved;
  for (const PlannedRun& run : runs) {
    const std::optional<RunResult> result = run.result();
    if (!result || result->state == "interrupted") saved.push_back(static_cast<int64_t>(run.checkpoints().size()));
  }
  const int64_t missing = missing_checkpoints(*o.epochs, o.checkpoints.keep_last, saved);
  std::error_code error;
  const fs::space_info space = fs::space(o.reproduce.out, error);
  if (error || missing * bytes <= static_cast<int64_t>(space.available)) return;
  throw DataError(
      fmt::format("--out {}: {} checkpoints of {} need {}, but {} are free; name a folder on another disk, or lower "
                  "--keep-last or --epochs",
                  o.reproduce.out, format_count(missing), format_bytes(bytes), format_bytes(missing * bytes),
                  format_bytes(static_cast<int64_t>(space.available))));
}

std::vector<std::string> find_departures(const Options& o, const Job& job, const std::vector<DeviceId>& devices,
                                         const std::vector<PlannedRun>& runs, const Facts& machine) {
  std::vector<std::string> departures;
  const auto differs = [&](bool different, const std::string& here, const std::string& published) {
    if (different) departures.push_back(fmt::format("{}; published: {}", here, published));
  };
  const Options published = published_options(o);
  const OptimizerConfig optimizer = resolve_optimizer(o);
  differs(o.model != published.model, "model " + o.model, published.model);
  differs(!o.data.starts_with("cifar10"), "data " + o.data, "CIFAR-10");
  differs(job.model.height != 227, fmt::format("images of {0}x{0}", job.model.height), "227x227");
  differs(o.limit_samples.has_value(),
          fmt::format("the first {} training images", format_count(o.limit_samples.value_or(0))), "all 50,000");
  differs(*o.epochs != *published.epochs, fmt::format("{} epoch{}", *o.epochs, *o.epochs == 1 ? "" : "s"),
          fmt::format("{}", *published.epochs));
  differs(o.batch_size != published.batch_size, fmt::format("batch size {}", o.batch_size),
          fmt::format("{}", published.batch_size));
  differs(std::string(optimizer.name()) != "adamw", fmt::format("optimizer {}", optimizer.name()), "adamw");
  differs(optimizer.learning_rate() != *published.lr, fmt::format("lr {}", optimizer.learning_rate()),
          fmt::format("{}", *published.lr));
  const auto device = std::find_if(machine.begin(), machine.end(),
                                   [&](const auto& fact) { return fact.first == devices.front().str(); });
  const std::string text =
      device == machine.end() ? devices.front().str() : fmt::format("{}: {}", device->first, device->second);
  differs(text.find("RTX 2060") == std::string::npos, fmt::format("device {}", text), "an RTX 2060");
  add_other_departures(published, job, devices, runs, departures);
  return departures;
}

}  // namespace vitrine::tools
