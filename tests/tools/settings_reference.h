// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/program/flags/options.h"

/// The parts of docs/ that are made from the table of settings, in Markdown.
namespace vitrine::tools {

/// All flags of all commands, each once: a table for each group with the flag, its meaning and default, and the
/// commands that take it. Where a command gives a flag another meaning or default, its row says so. Part of
/// docs/program.md.
std::string flag_reference(const SettingTable& table = setting_table());

/// The part of docs/json.md that describes the configuration.
std::string configuration_reference(const SettingTable& table = setting_table());

}  // namespace vitrine::tools
