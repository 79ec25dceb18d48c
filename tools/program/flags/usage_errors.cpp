// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/usage_errors.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/printable.h"
#include "tools/program/flags/help.h"
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

std::string describe_unexpected(const CLI::App& app, const CLI::App& command, const std::string& argument,
                                const std::string& previous) {
  const std::string name = excerpt(argument.substr(0, argument.find('=')));
  if (name.rfind('-', 0) != 0) {
    const CLI::Option* const before = command.get_option_no_throw(previous);
    if (before == nullptr || before->get_items_expected_max() > 0)
      return fmt::format("unexpected argument '{}': what follows {} are options, such as --json", name,
                         command.get_name());
    return fmt::format("{} takes no value, got '{}'{}", previous, name,
                       previous == "--json" ? fmt::format("; it prints on stdout: write --json > {}", name) : "");
  }
  if (const std::vector<std::string> others = command_names(app, name); !others.empty()) {
    return fmt::format("there is no option {} here; it is one of vitrine {}", name, fmt::join(others, ", "));
  }
  return fmt::format("there is no option {}{}", name, did_you_mean(name, option_names(command)));
}

std::string describe_missing_value(const CLI::App& command, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const CLI::Option* const option = command.get_option_no_throw(arguments[i]);
    if (option == nullptr || option->get_positional() || option->get_items_expected_min() == 0) continue;
    if (i + 1 == arguments.size() || command.get_option_no_throw(arguments[i + 1]) != nullptr)
      return fmt::format("{0}: expected a value: {0} {1}", arguments[i], option_value(*option));
    ++i;
  }
  return {};
}

std::string describe_unknown_command(const CLI::App& app, const std::string& argument) {
  const std::vector<std::string> names = command_names(app);
  if (argument.rfind('-', 0) == 0) {
    return fmt::format("expected a command before {}; use vitrine {}", excerpt(argument), fmt::join(names, ", "));
  }
  const std::string nearest = did_you_mean(argument, names);
  return fmt::format("there is no command '{}'{} The commands are {}", excerpt(argument),
                     nearest.empty() ? "." : nearest, fmt::join(names, ", "));
}

}  // namespace vitrine::tools
