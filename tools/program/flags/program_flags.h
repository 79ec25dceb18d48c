// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

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
  Options reproduction;  // those of `vitrine reproduce`, which has other defaults
  CLI::App app;
};

}  // namespace vitrine::tools
