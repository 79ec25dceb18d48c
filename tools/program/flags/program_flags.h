// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tools/program/flags/options.h"
#include "tools/program/flags/setting.h"

namespace vitrine::tools {

struct CommandRow {
  Options::Command command;
  const char* name;
  const char* purpose;
  std::vector<const char*> examples;
};
/// The commands in the order of the help.
const std::vector<CommandRow>& command_table();
/// What an exit status means.
inline constexpr const char* kExitStatuses =
    "0 ok, 1 failure, 2 usage, 130 interrupted, 143 terminated (SIGTERM; checkpoint saved)";

/// The commands of the program with their flags, and what these set.
struct ProgramFlags {
  explicit ProgramFlags(const SettingTable& table = setting_table());
  ProgramFlags(const ProgramFlags&) = delete;
  ProgramFlags& operator=(const ProgramFlags&) = delete;

  Options options;
  CLI::App app;
};

/// What a flag means for some of the commands that have it.
struct FlagVariant {
  std::string meaning;  // with the default
  std::vector<std::string> commands;
};
struct FlagEntry {
  std::string name, usage, group;     // usage: "--batch-size N|max", of the first command that has it
  std::vector<FlagVariant> variants;  // by meaning
};
/// The flags of all commands, each once, those of a group together.
std::vector<FlagEntry> all_flags(const ProgramFlags& program);
/// A meaning beside another one: its default alone, if nothing else differs.
std::string what_differs(const std::string& meaning, const std::string& first);

/// The manual page, in roff.
std::string man_page(const SettingTable& table = setting_table());
/// What bash (and zsh) read to complete commands, flags and their words.
std::string bash_completion(const SettingTable& table = setting_table());
/// {"COMMAND": {"purpose", "flags": [{"names", "value", "positional", "repeated", "group", "meaning"}]}}, of which the
/// Python package makes its functions' arguments. "value" is empty for a switch.
std::string flags_json(const SettingTable& table = setting_table());

/// "--mode dp|ddp", "--lr X", "--json": an option with the values that it takes.
std::string option_usage(const CLI::Option& option);
/// "dp|ddp", "X"; empty for a switch.
std::string option_value(const CLI::Option& option);
/// What it sets, with the default: "Optimizer [adamw]".
std::string option_meaning(const CLI::Option& option);

/// The help of the program and of its commands, as wide as the terminal.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
};

}  // namespace vitrine::tools
