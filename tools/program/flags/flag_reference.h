// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/program/flags/options.h"

namespace vitrine::tools {

/// All flags of all commands in Markdown, each once: a table for each group with the flag, its meaning and default, and
/// the commands that take it. Where a command gives a flag another meaning or default, its row says so. Part of
/// docs/program.md.
std::string flag_reference(const SettingTable& table = setting_table());

/// The manual page, in roff.
std::string man_page(const SettingTable& table = setting_table());
/// What bash (and zsh) read to complete commands, flags and their words.
std::string bash_completion(const SettingTable& table = setting_table());

}  // namespace vitrine::tools
