// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/settings_reference.h"

#include <algorithm>
#include <vector>

#include <fmt/ranges.h>

#include "tools/program/flags/program_flags.h"
#include "tools/program/flags/setting.h"

namespace vitrine::tools {

namespace {

/// Text in a cell of a table.
std::string table_cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? "\\|" : std::string(1, c);
  return escaped;
}

std::string flag_row(const FlagEntry& flag) {
  const std::string& first = flag.variants.front().meaning;
  std::string meaning = table_cell(first);
  std::vector<std::string> commands = flag.variants.front().commands;
  for (size_t i = 1; i < flag.variants.size(); ++i) {
    const FlagVariant& variant = flag.variants[i];
    meaning +=
        fmt::format("<br>{}: {}", fmt::join(variant.commands, ", "), table_cell(what_differs(variant.meaning, first)));
    commands.insert(commands.end(), variant.commands.begin(), variant.commands.end());
  }
  return fmt::format("| `{}` | {} | {} |\n", table_cell(flag.usage), meaning, fmt::join(commands, ", "));
}

/// "train plan compare".
std::string command_words(Commands commands) {
  std::vector<const char*> words;
  for (const auto& [command, name] :
       {std::pair{kTrain, "train"}, {kPlan, "plan"}, {kCompare, "compare"}, {kEval, "eval"}}) {
    if ((commands & command) != 0) words.push_back(name);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace

std::string flag_reference(const SettingTable& table) {
  std::string text, group;
  for (const FlagEntry& flag : all_flags(ProgramFlags(table))) {
    if (flag.group != group) {
      text += fmt::format("{}### {}\n\n| flag | meaning [default] | commands |\n| --- | --- | --- |\n",
                          text.empty() ? "" : "\n", flag.group);
    }
    group = flag.group;
    text += flag_row(flag);
  }
  return text;
}

std::string configuration_reference(const SettingTable& table) {
  struct Line {
    std::vector<std::string> keys;
    std::string commands, meaning;
  };
  std::vector<Line> lines;
  for (const SettingRow& row : table) {
    if (row.json_commands() == 0) continue;
    const Json value = row.read ? Json(0) : row.field.json(Options{});
    const std::string array = row.key.find('[') == std::string::npos && value.is_array() ? "[]" : "";
    // Named like it; files are named with it.
    const bool of_flag = row.meaning.empty() && row.key.empty() && !row.negated() && row.ranks != Ranks::given;
    std::string meaning = of_flag ? "the flag" : row.meaning;
    if (meaning.empty())
      meaning = row.negated() ? fmt::format("false with `{}`", row.flag) : fmt::format("`--{}`", row.name());
    if (of_flag && value.is_array()) meaning += "; empty without it";
    if (of_flag && value.is_null()) meaning += "; null without it";
    const std::string key = (row.key.empty() ? row.json_key() : row.key) + array;
    const std::string commands = command_words(row.json_commands());
    const auto same = std::ranges::find_if(
        lines, [&](const Line& line) { return of_flag && line.meaning == meaning && line.commands == commands; });
    if (same == lines.end()) {
      lines.push_back({{key}, commands, meaning});
    } else {
      same->keys.push_back(key);
    }
  }
  std::string text = "| key | commands | meaning |\n| --- | --- | --- |\n";
  for (const Line& line : lines) {
    const std::string names = fmt::format("{}", fmt::join(line.keys, ","));
    text += fmt::format("| `config.{}` | {} | {} |\n", line.keys.size() == 1 ? names : '{' + names + '}', line.commands,
                        line.meaning);
  }
  return text;
}

}  // namespace vitrine::tools
