// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/usage_errors.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/program/text/suggest.h"

namespace vitrine::tools {

namespace {

/// The long names of the options of `app` that its help shows.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app, const std::string& with_option = {}) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::vector<std::string> options = option_names(*command);
    if (with_option.empty() || std::find(options.begin(), options.end(), with_option) != options.end())
      names.push_back(command->get_name());
  }
  return names;
}

}  // namespace

std::string describe_unexpected(const CLI::App& app, const CLI::App& command, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  if (name.rfind('-', 0) != 0)
    return fmt::format("unexpected argument '{}': what follows {} are options, such as --json", argument,
                       command.get_name());
  if (const std::vector<std::string> others = command_names(app, name); !others.empty()) {
    return fmt::format("there is no option {} here; it is one of vitrine {}", name, fmt::join(others, ", "));
  }
  return fmt::format("there is no option {}{}", name, did_you_mean(name, option_names(command)));
}

std::string describe_unknown_command(const CLI::App& app, const std::string& argument) {
  const std::vector<std::string> names = command_names(app);
  if (argument.rfind('-', 0) == 0) {
    return fmt::format("expected a command before {}; use vitrine {}", argument, fmt::join(names, ", "));
  }
  const std::string nearest = did_you_mean(argument, names);
  return fmt::format("there is no command '{}'{} The commands are {}", argument, nearest.empty() ? "." : nearest,
                     fmt::join(names, ", "));
}

}  // namespace vitrine::tools
