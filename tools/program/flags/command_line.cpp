// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/printable.h"
#include "tools/program/flags/advice.h"
#include "tools/program/flags/flag_reference.h"
#include "tools/program/flags/program_flags.h"
#include "tools/program/flags/usage_errors.h"

namespace vitrine::tools {

namespace {

CommandLine usage_error(const CLI::App* command, const std::string& message) {
  const std::string name = command == nullptr ? "vitrine" : "vitrine " + command->get_name();
  CommandLine result;
  result.exit_code = kExitUsage;
  result.error = fmt::format("{}: {}\nTry '{} --help'.\n", name, printable_lines(message), name);
  return result;
}

/// An empty value usually comes from a shell variable that is not set.
void check_values_given(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_min() == 0) continue;  // may be left without a value
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    throw ConfigError(fmt::format("{}: the value is empty; give one, or leave the option out", option->get_name()));
  }
}

/// "help train" as "train --help", and "version" as "--version".
std::vector<std::string> without_words_for_flags(std::vector<std::string> arguments) {
  if (arguments.empty()) return arguments;
  if (arguments[0] == "version") arguments[0] = "--version";
  if (arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  return arguments;
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments, const SettingTable& table) {
  if (!arguments.empty() && arguments[0] == "man") return {{}, kExitOk, man_page(table), {}};
  if (!arguments.empty() && arguments[0] == "completion") {
    if (arguments.size() == 2 && arguments[1] == "bash") return {{}, kExitOk, bash_completion(table), {}};
    return usage_error(nullptr,
                       "completion: expected bash (zsh reads it after: autoload -U bashcompinit && bashcompinit)");
  }
  ProgramFlags flags(table);
  CLI::App& app = flags.app;
  Options& options = flags.options;
  CommandLine result;
  const CLI::App* command = nullptr;
  try {
    const std::vector<std::string> words = without_words_for_flags(arguments);
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    command = app.get_subcommands().front();
    if (command->get_name() == "reproduce") options = flags.reproduction;
    for (const CommandRow& row : command_table()) {
      if (command->get_name() == row.name) options.command = row.command;
    }
    if (const std::string problem = describe_missing_value(*command, arguments); !problem.empty())
      throw ConfigError(problem);
    check_values_given(*command);
    if (options.command == Options::Command::reproduce) resolve_as_published(*command, options);
    if (options.command == Options::Command::collectives) resolve_collectives(*command, options.collectives);
    check_combinations(options);
    options.arguments = arguments;
    result.options = options;
    return result;
  } catch (const CLI::ParseError& error) {
    if (!app.get_subcommands().empty()) command = app.get_subcommands().front();
    std::ostringstream output, ignored;
    const std::vector<std::string> unexpected = app.remaining(true);
    const bool of_no_command = command == nullptr && !unexpected.empty();
    if (error.get_exit_code() == 0 && !of_no_command) {
      app.exit(error, output, ignored);
      result.output = output.str();
      return result;
    }
    if (command != nullptr) {
      if (const std::string problem = describe_missing_value(*command, arguments); !problem.empty())
        return usage_error(command, problem);
    }
    if (unexpected.empty() || arguments.empty()) return usage_error(command, error.what());
    if (command == nullptr) return usage_error(command, describe_unknown_command(app, unexpected.front()));
    // The value of an unknown option is left over too; report the option.
    const auto option =
        std::find_if(unexpected.begin(), unexpected.end(), [](const std::string& a) { return a.rfind('-', 0) == 0; });
    const std::string& argument = option == unexpected.end() ? unexpected.front() : *option;
    const auto at = std::find(arguments.begin() + 1, arguments.end(), argument);
    return usage_error(command, describe_unexpected(app, *command, argument, at == arguments.end() ? "" : *(at - 1)));
  } catch (const ConfigError& error) {
    if (!app.get_subcommands().empty()) command = app.get_subcommands().front();
    return usage_error(command, in_program_words(error));
  }
}

}  // namespace vitrine::tools
