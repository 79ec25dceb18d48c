// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/configuration.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tools/program/flags/setting.h"

namespace vitrine::tools {

std::string text_of(const Json& value) {
  if (value.is_null() || value.is_discarded()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (!value.is_array()) return value.dump();
  std::vector<std::string> items;
  for (const Json& item : value) items.push_back(text_of(item));
  return fmt::format("{}", fmt::join(items, ","));
}

namespace {

const SettingRow* find_setting(const SettingTable& table, const std::string& name) {
  const auto found = std::ranges::find_if(table, [&](const SettingRow& row) { return row.name() == name; });
  return found == table.end() ? nullptr : &*found;
}

/// Whether the value of the setting's owner is one under which the setting exists.
bool exists(const SettingRow& row, const SettingContext& c, const SettingTable& table) {
  if (row.owner.values.empty()) return true;
  const std::string owner = text_of(find_setting(table, row.owner.name)->value(c));
  return std::ranges::find(row.owner.values, owner) != row.owner.values.end();
}

/// The effective value as text: a default that is given has the same text as one that is not.
std::string text_in_force(const SettingRow& row, const SettingContext& c, const SettingTable& table) {
  if (!exists(row, c, table)) return "";
  if (row.compared) return text_of(row.compared(c));
  const Json value = row.value(c);
  return text_of(value.is_null() ? row.owner.otherwise : value);
}

}  // namespace

Json config_json(const SettingContext& configuration, const SettingTable& table) {
  Json json;
  for (const SettingRow& row : table) {
    if ((row.json_commands() & only(configuration.options.command)) == 0) continue;
    Json value = row.value(configuration);
    if (!value.is_discarded()) json[row.json_key()] = std::move(value);
  }
  return json;
}

std::vector<RunSetting> run_settings(const SettingContext& configuration, const SettingTable& table) {
  std::vector<RunSetting> settings;
  for (const SettingRow& row : table) {
    if (row.effect == Effect::local) continue;
    settings.push_back({row.name(), text_in_force(row, configuration, table),
                        row.effect_if ? row.effect_if(configuration) : row.effect});
  }
  return settings;
}

SettingValues values_of(const std::vector<RunSetting>& settings) {
  SettingValues values;
  for (const RunSetting& setting : settings) values.emplace_back(setting.name, setting.value);
  return values;
}

SettingValues agreed_settings(const SettingContext& configuration, const SettingTable& table) {
  SettingValues fields;
  for (const SettingRow& row : table) {
    const bool has = ((row.commands | row.json_commands()) & only(configuration.options.command)) != 0;
    if (!has || row.ranks == Ranks::local || row.flag.empty()) continue;
    std::string value = text_in_force(row, configuration, table);
    if (row.ranks == Ranks::given) value = value.empty() ? "" : "set";
    if (row.negated()) value = value == "on" ? "" : "set";
    fields.emplace_back(row.negated() ? row.flag : "--" + row.name(), value.empty() ? "nothing" : value);
  }
  return fields;
}

}  // namespace vitrine::tools
