// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/run_settings.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/hash.h"

namespace vitrine::tools {

namespace {

/// Settings that determine the shapes of the parameters, the most likely cause of a difference first.
constexpr const char* kShapeSettings[] = {"model", "image-size", "data"};

void mark_fixed(std::vector<SettingChange>& changes) {
  for (const char* const name : kShapeSettings) {
    for (SettingChange& change : changes) {
      if (change.name == name) {
        change.fixed = true;
        return;
      }
    }
  }
}

}  // namespace

std::vector<RunSetting> run_settings(const Options& options, const Job& job, Run& run) {
  const DeviceGroup& devices = *run.devices;
  std::vector<RunSetting> settings = run_settings(
      SettingContext{options, job, devices.options().devices, devices.world_size(), devices.process_count(),
                     run.engine->config().workspace_bytes, (*run.devices)[0].thread_count()});
  settings.erase(std::remove_if(settings.begin(), settings.end(),
                                [](const RunSetting& setting) { return setting.effect == Effect::start; }),
                 settings.end());
  return settings;
}

std::string parameters_hash(const FlatLayout& layout) {
  StreamingHash hash;
  for (const ParamSpec& spec : layout.specs()) {
    const std::string text = fmt::format("{} {}\n", spec.name, spec.shape.str());
    hash.add(std::as_bytes(std::span(text)));
  }
  return fmt::format("{:016x}", hash.value());
}

std::vector<SettingChange> find_changes(const SettingValues& before, const std::vector<RunSetting>& now) {
  std::map<std::string, std::string> old(before.begin(), before.end());
  std::vector<SettingChange> changes;
  for (const RunSetting& setting : now) {
    const std::string value = std::exchange(old[setting.name], {});
    if (value != setting.value)
      changes.push_back({setting.name, value, setting.value, setting.effect, setting.part_of});
  }
  // What another version may have recorded.
  for (const auto& [name, value] : old) {
    if (!value.empty()) changes.push_back({name, value, ""});
  }
  return changes;
}

std::vector<SettingChange> compare_settings(const SettingValues& before, const std::vector<RunSetting>& now,
                                            const std::vector<std::string>& allowed, bool same_parameters) {
  const std::set<std::string> named(allowed.begin(), allowed.end());
  std::set<std::string> unknown = named;
  for (const auto& [name, value] : before) unknown.erase(name);
  std::vector<std::string> names;
  for (const RunSetting& setting : now) {
    unknown.erase(setting.name);
    names.push_back(setting.name);
  }
  if (!unknown.empty()) {
    throw ConfigError(
        fmt::format("--resume-change {}: a checkpoint has no such setting; use names from {} ({} only while the "
                    "parameters keep their shapes)",
                    *unknown.begin(), fmt::join(names, ", "), fmt::join(kShapeSettings, ", ")));
  }
  std::vector<SettingChange> changes = find_changes(before, now);
  for (SettingChange& change : changes) {
    // A setting that exists only under the old or the new value of its owner is allowed with the owner.
    const bool follows = named.contains(change.part_of) && (change.before.empty() || change.now.empty());
    change.named = follows || named.contains(change.name);
  }
  if (!same_parameters) mark_fixed(changes);
  std::vector<SettingChange> refused;
  std::copy_if(changes.begin(), changes.end(), std::back_inserter(refused), [](const SettingChange& change) {
    return change.fixed || (change.effect == Effect::result && !change.named);
  });
  if (refused.empty()) return changes;
  if (std::any_of(refused.begin(), refused.end(), [](const SettingChange& change) { return change.fixed; })) {
    throw ConfigError(fmt::format("--resume: {}; use the checkpoint's settings, or start a new run",
                                  fmt::join(describe_changes(refused), "; ")));
  }
  std::vector<std::string> refused_names;
  for (const SettingChange& change : refused) refused_names.push_back(change.name);
  throw ConfigError(fmt::format(
      "--resume: {}. This changes results; use the checkpoint's settings, or allow it with --resume-change {}",
      fmt::join(describe_changes(refused), "; "), fmt::join(refused_names, ",")));
}

std::vector<std::string> describe_changes(const std::vector<SettingChange>& changes) {
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  std::vector<std::string> texts;
  for (const SettingChange& change : changes) {
    const char* const consequence = change.fixed
                                        ? " (cannot be changed: the parameters would have other names or shapes)"
                                    : change.effect == Effect::rounding ? ": results differ by rounding"
                                    : change.named                      ? ", allowed by --resume-change"
                                                                        : "";
    texts.push_back(fmt::format("--{} is {}, in the checkpoint {}{}", change.name, shown(change.now),
                                shown(change.before), consequence));
  }
  return texts;
}

bool has_changed(const std::vector<SettingChange>& changes, const std::string& name) {
  return std::any_of(changes.begin(), changes.end(), [&](const SettingChange& change) { return change.name == name; });
}

}  // namespace vitrine::tools
