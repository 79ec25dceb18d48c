// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace vitrine::tools {

/// What is wrong with an argument that no option accepts, and what was probably meant.
///   app  the program   command  the subcommand before the argument   previous  the argument before it
std::string describe_unexpected(const CLI::App& app, const CLI::App& command, const std::string& argument,
                                const std::string& previous);
/// The first flag that has another flag, or nothing, in the place of its value: "--report: expected a value: --report
/// FILE.html". Empty if there is none.
std::string describe_missing_value(const CLI::App& command, const std::vector<std::string>& arguments);

/// The same for an argument in the place of the command.
std::string describe_unknown_command(const CLI::App& app, const std::string& argument);

}  // namespace vitrine::tools
