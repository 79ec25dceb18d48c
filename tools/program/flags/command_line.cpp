// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/program/flags/advice.h"
#include "tools/program/flags/program_flags.h"
#include "tools/program/flags/usage_errors.h"

namespace vitrine::tools {

namespace {

CommandLine usage_error(const CLI::App* command, const std::string& message) {
  const std::string name = command == nullptr ? "vitrine" : "vitrine " + command->get_name();
  CommandLine result;
  result.exit_code = kExitUsage;
  result.error = fmt::format("{}: {}\nTry '{} --help'.\n", name, message, name);
  return result;
}

/// An empty value is most often that of a shell variable that is not set.
void check_values_given(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_min() == 0) continue;  // may be left without a value
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    throw ConfigError(fmt::format("{}: the value is empty; give one, or leave the option out", option->get_name()));
  }
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments, const SettingTable& table) {
  ProgramFlags flags(table);
  CLI::App& app = flags.app;
  Options& options = flags.options;
  CommandLine result;
  const CLI::App* command = nullptr;
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    command = app.get_subcommands().front();
    if (command->get_name() == "reproduce") options = flags.reproduction;
    options.command = command->get_name() == "train"         ? Options::Command::train
                      : command->get_name() == "eval"        ? Options::Command::eval
                      : command->get_name() == "compare"     ? Options::Command::compare
                      : command->get_name() == "reproduce"   ? Options::Command::reproduce
                      : command->get_name() == "plan"        ? Options::Command::plan
                      : command->get_name() == "collectives" ? Options::Command::collectives
                      : command->get_name() == "lab"         ? Options::Command::lab
                      : command->get_name() == "lesson"      ? Options::Command::lesson
                                                             : Options::Command::info;
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
    if (error.get_exit_code() == 0) {
      app.exit(error, output, ignored);
      result.output = output.str();
      return result;
    }
    const std::vector<std::string> unexpected = app.remaining(true);
    if (unexpected.empty() || arguments.empty()) return usage_error(command, error.what());
    if (command == nullptr) return usage_error(command, describe_unknown_command(app, unexpected.front()));
    // The value of an unknown option is left over too; report the option.
    const auto option =
        std::find_if(unexpected.begin(), unexpected.end(), [](const std::string& a) { return a.rfind('-', 0) == 0; });
    return usage_error(command,
                       describe_unexpected(app, *command, option == unexpected.end() ? unexpected.front() : *option));
  } catch (const ConfigError& error) {
    if (!app.get_subcommands().empty()) command = app.get_subcommands().front();
    return usage_error(command, in_program_words(error));
  }
}

}  // namespace vitrine::tools
