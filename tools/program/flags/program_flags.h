// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "tools/program/flags/setting.h"

namespace vitrine::tools {

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
