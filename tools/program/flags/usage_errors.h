// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace vitrine::tools {

/// What is wrong with an argument that no option accepts, and what was probably meant.
///   app  the program   command  the subcommand before the argument
std::string describe_unexpected(const CLI::App& app, const CLI::App& command, const std::string& argument);

/// The same for an argument in the place of the command.
std::string describe_unknown_command(const CLI::App& app, const std::string& argument);

}  // namespace vitrine::tools
