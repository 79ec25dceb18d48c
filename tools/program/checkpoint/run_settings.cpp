// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/run_settings.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/hash.h"

namespace vitrine::tools {

namespace {

/// Settings that determine the shapes of the parameters, the most likely cause of a difference first.
constexpr const char* kShapeSettings[] = {"model", "image-size", "sequence-length", "data"};

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

/// Versions up to 0.6.0 called device 0 gpu0 here, and did not record the arithmetic, which only exact mode must know.
SettingValues in_words_of_today(SettingValues before, const std::vector<RunSetting>& now) {
  constexpr std::string_view kOld = "reduce gpu0";
  for (auto& [name, value] : before) {
    if (const size_t at = value.find(kOld); name == "mode" && at != std::string::npos)
      value.replace(at, kOld.size(), "reduce device0");
  }
  for (const RunSetting& setting : now) {
    const bool recorded = std::ranges::any_of(before, [&](const auto& old) { return old.first == setting.name; });
    if (setting.name == "cpu_arithmetic" && setting.effect == Effect::rounding && !recorded)
      before.emplace_back(setting.name, setting.value);
  }
  return before;
}

}  // namespace

std::vector<RunSetting> run_settings(const Options& options, const Job& job, Run& run) {
  const DeviceGroup& devices = *run.devices;
  return run_settings({options, job, devices.options().devices, devices.world_size(), devices.process_count(),
                       run.engine->config().workspace_bytes, devices[0].thread_count()});
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
    if (value != setting.value) changes.push_back({setting.name, value, setting.value, setting.effect});
  }
  // What another version may have recorded.
  for (const auto& [name, value] : old) {
    if (!value.empty()) changes.push_back({name, value, ""});
  }
  return changes;
}

std::vector<SettingChange> compare_settings(const SettingValues& before, const std::vector<RunSetting>& now,
                                            const std::string& checkpoint, bool same_parameters) {
  std::vector<SettingChange> changes = find_changes(in_words_of_today(before, now), now);
  if (!same_parameters) mark_fixed(changes);
  std::vector<SettingChange> refused;
  std::copy_if(changes.begin(), changes.end(), std::back_inserter(refused),
               [](const SettingChange& change) { return change.fixed || change.effect == Effect::result; });
  if (refused.empty()) return changes;
  const bool fixed = std::ranges::any_of(refused, &SettingChange::fixed);
  throw ConfigError(fmt::format(
      "--resume: {}. {}; use the checkpoint's settings, or start a new run{}",
      fmt::join(describe_changes(refused), "; "), fixed ? "The parameters do not fit" : "This changes results",
      fixed ? "" : fmt::format(" from its weights with --init-weights {} and another --checkpoint-dir", checkpoint)));
}

std::vector<std::string> describe_changes(const std::vector<SettingChange>& changes) {
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  std::vector<std::string> texts;
  for (const SettingChange& change : changes) {
    const char* const consequence = change.fixed                        ? " (the parameters have other shapes)"
                                    : change.effect == Effect::rounding ? ": results differ by rounding"
                                    : change.effect == Effect::rate     ? ": in force from here on"
                                                                        : "";
    const char* const dashes = change.name.find('_') == std::string::npos ? "--" : "";  // a key of the JSON, no flag
    texts.push_back(fmt::format("{}{} is {}, in the checkpoint {}{}", dashes, change.name, shown(change.now),
                                shown(change.before), consequence));
  }
  return texts;
}

bool has_changed(const std::vector<SettingChange>& changes, const std::string& name) {
  return std::any_of(changes.begin(), changes.end(), [&](const SettingChange& change) { return change.name == name; });
}

}  // namespace vitrine::tools
