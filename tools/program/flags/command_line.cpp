// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <sstream>

#include <fmt/ranges.h>

#include "nn/model.h"
#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/flags/advice.h"
#include "tools/program/flags/program_flags.h"
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
    if (with_option.empty() || std::ranges::find(options, with_option) != options.end())
      names.push_back(command->get_name());
  }
  return names;
}

/// What is wrong with an argument that no option accepts, and what was probably meant.
///   app  the program   command  the subcommand before the argument   previous  the argument before it
std::string describe_unexpected(const CLI::App& app, const CLI::App& command, const std::string& argument,
                                const std::string& previous) {
  const std::string name = excerpt(argument.substr(0, argument.find('=')));
  if (name.rfind('-', 0) != 0) {
    if (command.get_option_no_throw("--model") != nullptr && std::ranges::count(model_names(), name) != 0)
      return fmt::format("unexpected argument '{0}': a model is chosen by its flag: --model {0}", name);
    const CLI::Option* const before = command.get_option_no_throw(previous);
    if (before == nullptr || before->get_items_expected_max() > 0)
      return fmt::format("unexpected argument '{}': what follows {} are options, such as --{}", name,
                         command.get_name(), command.get_option_no_throw("--a") ? "a and --b" : "json");
    return fmt::format("{} takes no value, got '{}'{}", previous, name,
                       previous == "--json" ? fmt::format("; it prints on stdout: write --json > {}", name) : "");
  }
  if (const std::vector<std::string> others = command_names(app, name); !others.empty()) {
    return fmt::format("there is no option {} here; it is one of vitrine {}", name, fmt::join(others, ", "));
  }
  // PyTorch users' names.
  static const std::map<std::string, std::string> others = {
      {"--learning-rate", "--lr"},
      {"--bs", "--batch-size"},
      {"--wd", "--weight-decay"},
      {"--amp", "--precision fp16"},
      {"--fp16", "--precision fp16"},
      {"--bf16", "--precision bf16"},
      {"--dtype", "--precision"},
      {"--gpus", "--devices"},
      {"--num-workers", "--workers"},
      {"--betas", "--adam-betas"},
      {"--beta1", "--adam-betas B1,B2"},
      {"--beta2", "--adam-betas B1,B2"},
      {"--eps", "--adam-eps"},
      {"--gradient-accumulation-steps", "--accumulate"},
      {"--max-grad-norm", "--clip-norm"},
      {"--gradient-checkpointing", "--recompute auto"},
      {"--per-device-train-batch-size", "--batch-size (the samples of all devices together)"},
      {"--nproc-per-node", "--devices (all in one process), or give it to torchrun"},
      {"--zero-stage", "--mode zero1, zero2 or zero3"},
      {"--fsdp", "--mode zero3"},
      {"--resume-from-checkpoint", "--resume"},
      {"--sharding-strategy", "--mode zero2 or zero3"},
      {"--output-dir", "--checkpoint-dir"},
      {"--sync-bn", "--batch-norm exact, the default"}};
  std::string dashes = name;
  std::replace(dashes.begin() + std::min<ptrdiff_t>(2, std::ssize(dashes)), dashes.end(), '_', '-');
  const auto other = others.find(dashes);
  return fmt::format(
      "there is no option {}{}", name,
      other == others.end() ? did_you_mean(name, option_names(command)) : fmt::format("; use {}", other->second));
}

/// The first flag that has another flag, or nothing, in the place of its value: "--report: expected a value: --report
/// FILE.html". Empty if there is none.
std::string describe_missing_value(const CLI::App& command, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool empty = arguments[i].ends_with('=');
    const std::string name = arguments[i].substr(0, arguments[i].size() - (empty ? 1 : 0));
    const CLI::Option* const option = command.get_option_no_throw(name);
    if (option == nullptr || option->get_positional() || option->get_items_expected_min() == 0) continue;
    if (empty || i + 1 == arguments.size() || command.get_option_no_throw(arguments[i + 1]) != nullptr)
      return fmt::format("{0}: expected a value: {0} {1}", name, option_value(*option));
    ++i;
  }
  return {};
}

/// The same for an argument in the place of the command.
std::string describe_unknown_command(const CLI::App& app, const std::string& argument) {
  const std::vector<std::string> names = command_names(app);
  if (argument.rfind('-', 0) == 0) {
    return fmt::format("expected a command before {}; use vitrine {}", excerpt(argument), fmt::join(names, ", "));
  }
  const std::string nearest = did_you_mean(argument, names);
  return fmt::format("there is no command '{}'{} The commands are {}", excerpt(argument),
                     nearest.empty() ? "." : nearest, fmt::join(names, ", "));
}

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
    if (std::ranges::find(values, "") == values.end()) continue;
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

CommandLine parse(const std::vector<std::string>& arguments, const SettingTable& table) {
  if (!arguments.empty() && arguments[0] == "man") return {{}, kExitOk, man_page(table), {}};
  if (!arguments.empty() && arguments[0] == "completion") {
    if (arguments.size() == 2 && arguments[1] == "bash") return {{}, kExitOk, bash_completion(table), {}};
    if (arguments.size() == 2 && arguments[1] == "json") return {{}, kExitOk, flags_json(table), {}};
    return usage_error(
        nullptr, "completion: expected bash (zsh reads it after: autoload -U bashcompinit && bashcompinit) or json");
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
    for (const CommandRow& row : command_table()) {
      if (command->get_name() == row.name) options.command = row.command;
    }
    if (const std::string problem = describe_missing_value(*command, arguments); !problem.empty())
      throw ConfigError(problem);
    check_values_given(*command);
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
    if (arguments.empty())
      return usage_error(nullptr, fmt::format("expected a command: {}", fmt::join(command_names(app), ", ")));
    if (unexpected.empty()) return usage_error(command, error.what());
    if (command == nullptr) return usage_error(command, describe_unknown_command(app, unexpected.front()));
    // The value of an unknown option is left over too; report the option.
    const auto option = std::ranges::find_if(unexpected, [](const std::string& a) { return a.rfind('-', 0) == 0; });
    const std::string& argument = option == unexpected.end() ? unexpected.front() : *option;
    const auto at = std::find(arguments.begin() + 1, arguments.end(), argument);
    return usage_error(command, describe_unexpected(app, *command, argument, at == arguments.end() ? "" : *(at - 1)));
  } catch (const ConfigError& error) {
    if (!app.get_subcommands().empty()) command = app.get_subcommands().front();
    return usage_error(command, in_program_words(error));
  }
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments, const SettingTable& table) {
  CommandLine line = parse(arguments, table);
  line.error = with_short_quotes(std::move(line.error), arguments);
  return line;
}

}  // namespace vitrine::tools
