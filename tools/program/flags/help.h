// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace vitrine::tools {

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
