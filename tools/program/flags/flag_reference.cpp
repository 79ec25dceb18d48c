// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/flag_reference.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/program/flags/program_flags.h"

namespace vitrine::tools {

namespace {

struct FlagVariant {
  std::string meaning;  // with the default
  std::vector<std::string> commands;
};

struct FlagEntry {
  std::string name, group;
  std::string value;                  // "N|max"; empty for a switch
  std::vector<FlagVariant> variants;  // by meaning
};

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Text in a cell of a table.
std::string table_cell(std::string text) {
  replace_all(text, "|", "\\|");
  return text;
}

/// "dp|ddp" of "TEXT:{dp,ddp}", "N" of "INT".
std::string flag_value(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos) {
    std::string words = type.substr(open + 1, close - open - 1);
    std::replace(words.begin(), words.end(), ',', '|');
    return words;
  }
  if (type == "BOOLEAN") return "0|1";
  if (type == "FLOAT") return "X";
  return type == "INT" || type == "UINT" ? "N" : type;
}

std::string flag_meaning(const CLI::Option& option) {
  std::string meaning = option.get_description();
  if (!option.get_default_str().empty()) meaning += fmt::format(" [{}]", option.get_default_str());
  return option.get_required() ? meaning + "; required" : meaning;
}

void add_flag(const CLI::App& command, const CLI::Option& option, std::vector<FlagEntry>& flags) {
  std::string name = option.get_name(true, true);
  replace_all(name, "{false}", "");
  if (option.get_group().empty() || name == "-h,--help") return;
  auto flag = std::find_if(flags.begin(), flags.end(), [&](const FlagEntry& f) { return f.name == name; });
  if (flag == flags.end()) flag = flags.insert(flag, FlagEntry{name, option.get_group(), flag_value(option), {}});
  const std::string meaning = flag_meaning(option);
  auto variant = std::find_if(flag->variants.begin(), flag->variants.end(),
                              [&](const FlagVariant& v) { return v.meaning == meaning; });
  if (variant == flag->variants.end()) variant = flag->variants.insert(variant, FlagVariant{meaning, {}});
  variant->commands.push_back(command.get_name());
}

std::string flag_row(const FlagEntry& flag) {
  const std::string usage = flag.value.empty() ? flag.name : flag.name + " " + flag.value;
  std::string meaning = table_cell(flag.variants.front().meaning);
  std::vector<std::string> commands = flag.variants.front().commands;
  for (size_t i = 1; i < flag.variants.size(); ++i) {
    const FlagVariant& variant = flag.variants[i];
    meaning += fmt::format("<br>{}: {}", fmt::join(variant.commands, ", "), table_cell(variant.meaning));
    commands.insert(commands.end(), variant.commands.begin(), variant.commands.end());
  }
  return fmt::format("| `{}` | {} | {} |\n", table_cell(usage), meaning, fmt::join(commands, ", "));
}

}  // namespace

std::string flag_reference(const SettingTable& table) {
  ProgramFlags program(table);
  std::vector<FlagEntry> flags;
  for (const CLI::App* command : program.app.get_subcommands({})) {
    for (const CLI::Option* option : command->get_options()) add_flag(*command, *option, flags);
  }
  std::string text, group;
  while (!flags.empty()) {
    group = flags.front().group;
    text += fmt::format("### {}\n\n| flag | meaning [default] | commands |\n| --- | --- | --- |\n", group);
    for (const FlagEntry& flag : flags) {
      if (flag.group == group) text += flag_row(flag);
    }
    text += "\n";
    flags.erase(std::remove_if(flags.begin(), flags.end(), [&](const FlagEntry& f) { return f.group == group; }),
                flags.end());
  }
  return text.substr(0, text.size() - 1);
}

}  // namespace vitrine::tools
