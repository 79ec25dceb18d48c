// SPDX-License-Identifier: Apache-2.0
// The flags of the program and their help, from the table of settings.
#include "tools/program/flags/program_flags.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <unistd.h>

#include "runtime/text.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/lessons.h"
#include "tools/program/text/terminal.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

constexpr size_t kTextColumn = 34;
constexpr int kLeastText = 24;
constexpr size_t kLongestValue = 60;  // longer lists of words stand in the meaning

/// A name, and what it means beside or below it.
std::string entry(const std::string& name, const std::string& meaning) {
  const int width = Style::of(STDOUT_FILENO).width;
  std::string text = "  " + name;
  if (text.size() + 2 > kTextColumn) text += '\n';
  size_t column = text.back() == '\n' ? 0 : text.size();
  for (const std::string& line :
       split_text(wrap(meaning, std::max(width - static_cast<int>(kTextColumn), kLeastText), LongWords::kept), '\n')) {
    text += std::string(kTextColumn - column, ' ') + line + '\n';
    column = 0;
  }
  return text;
}

template <class T>
struct Parsed {
  static constexpr const char* kType = std::is_same_v<T, bool>       ? "BOOLEAN"
                                       : std::is_same_v<T, uint64_t> ? "UINT"
                                       : std::is_integral_v<T>       ? "INT"
                                       : std::is_floating_point_v<T> ? "FLOAT"
                                                                     : "TEXT";
  /// requires  text is in the setting's range
  static void assign(T& value, const std::string& text) {
    if constexpr (std::is_same_v<T, bool>) {
      value = text == "1";
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = read_number<T>(text).value();
    } else {
      value = text;
    }
  }
  static std::string shown(const T& value) { return fmt::format("{}", value); }
};

template <>
std::string Parsed<bool>::shown(const bool& value) {
  return value ? "1" : "0";
}

template <class T>
struct Parsed<std::optional<T>> {
  static constexpr const char* kType = Parsed<T>::kType;
  static void assign(std::optional<T>& value, const std::string& text) { Parsed<T>::assign(value.emplace(), text); }
  static std::string shown(const std::optional<T>&) { return {}; }
};

template <class T>
struct Parsed<std::vector<T>> {
  static constexpr const char* kType = Parsed<T>::kType;
  static void assign(std::vector<T>& value, const std::string& text) {
    value.clear();
    for (const std::string& item : split_text(text, ',')) Parsed<T>::assign(value.emplace_back(), item);
  }
  static std::string shown(const std::vector<T>&) { return {}; }
};

/// Refuses values out of range, and rewrites sizes as bytes.
CLI::Validator range_of(const SettingRow& row, const Values& values) {
  const auto check = [values, list = row.list == SettingRow::List::commas](std::string& text) {
    if (!list) return values.problem(text);
    std::vector<std::string> items = split_text(text, ',');
    for (std::string& item : items) {
      if (std::string problem = values.problem(item); !problem.empty()) return problem;
      if (item.empty()) return std::string("an item of the list is empty");
    }
    text = fmt::format("{}", fmt::join(items, ","));
    return std::string();
  };
  return {check, values.expected.empty() && !values.words.empty() ? fmt::format("{{{}}}", fmt::join(values.words, ","))
                                                                  : std::string()};
}

CLI::Option* add_switch(CLI::App& app, const SettingRow& row, bool& value) {
  if (!row.negated()) return app.add_flag(row.flag, value);
  return app.add_flag_callback(row.flag, [&value] { value = false; });
}

/// A flag that may be given several times, or a list of arguments.
CLI::Option* add_repeated(CLI::App& app, const SettingRow& row, std::vector<std::string>& values) {
  CLI::Option* const option = app.add_option(row.flag, values)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return row.flag.starts_with("--") ? option->expected(1) : option;
}

/// A flag that may be given without a value.
CLI::Option* add_with_or_without_value(CLI::App& app, const SettingRow& row, std::optional<std::string>& value) {
  const auto set = [&value](const CLI::results_t& values) {
    value = values.empty() ? std::string() : values.front();
    if (value == "{}") value = "";  // CLI11's word for a flag without a value
    return true;
  };
  return app.add_option(row.flag, set)->expected(0, 1);
}

template <class T>
CLI::Option* add_value(CLI::App& app, const SettingRow& row, T& value, bool* chosen) {
  const auto read = [&value, chosen, clear = row.clear, word = row.choice.word,
                     otherwise = value](const std::string& text) {
    if (chosen != nullptr) *chosen = text == word;
    if ((chosen != nullptr && *chosen) || (!clear.empty() && text == clear)) {
      value = otherwise;
    } else {
      Parsed<T>::assign(value, text);
    }
  };
  CLI::Option* const option = app.add_option_function<std::string>(row.flag, read);
  if (row.shows_default) option->default_str(Parsed<T>::shown(value));
  return option;
}

std::string type_of(const SettingRow& row, const std::string& otherwise, bool chooses) {
  std::string type = row.type.empty() ? otherwise : row.type;
  if (!chooses || type == "TEXT") return type;
  return (type == "INT" ? "N" : type) + "|" + row.choice.word;
}

CLI::Option* add_option(CLI::App& app, const SettingRow& row, Options& o, bool chooses) {
  return std::visit(
      [&](const auto& member) -> CLI::Option* {
        using M = std::decay_t<decltype(member)>;
        if constexpr (std::is_same_v<M, std::monostate>) {
          return nullptr;
        } else {
          auto& value = member(o);
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, bool>) {
            if (row.values.words.empty()) return add_switch(app, row, value);
          }
          CLI::Option* option = nullptr;
          if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            if (row.list == SettingRow::List::repeated) option = add_repeated(app, row, value);
          }
          if constexpr (std::is_same_v<T, std::optional<std::string>>) {
            if (row.may_lack_value) option = add_with_or_without_value(app, row, value);
          }
          if (option == nullptr)
            option = add_value(app, row, value, chooses ? &(o.choices.*row.choice.chosen) : nullptr);
          Values values = row.values;
          if (chooses && (values.accepts || !values.words.empty())) values.words.push_back(row.choice.word);
          option->type_name(type_of(row, Parsed<T>::kType, chooses));
          if (values.accepts || !values.words.empty() || row.list == SettingRow::List::commas)
            option->transform(range_of(row, values));
          return option;
        }
      },
      row.field);
}

void add_flags(CLI::App& parent, const CommandRow& of, Options& o, const SettingTable& table) {
  CLI::App& app = *parent.add_subcommand(of.name, of.purpose)->group("Commands");
  app.footer(fmt::format("Examples:\n  {}\n", fmt::join(of.examples, "\n  ")));
  const Options::Command command = of.command;
  for (const SettingRow& row : table) {
    if ((row.commands & only(command)) == 0) continue;
    const bool chooses = row.choice.chosen != nullptr && (kRuns & only(command)) != 0;
    CLI::Option& option = *add_option(app, row, o, chooses);
    const auto special = std::find_if(row.help_of.begin(), row.help_of.end(),
                                      [&](const auto& help) { return (help.first & only(command)) != 0; });
    option.description(special != row.help_of.end() ? special->second : row.help + (chooses ? row.choice.help : ""));
    option.group(row.group == "Options" ? CLI::OptionDefaults().get_group() : row.group);
    option.required((row.required & only(command)) != 0);
  }
}

}  // namespace

std::string option_value(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos) {
    std::string words = type.substr(open + 1, close - open - 1);
    std::replace(words.begin(), words.end(), ',', '|');
    return words;
  }
  if (type == "BOOLEAN") return "0|1";
  if (type == "FLOAT") return "X";
  return type == "INT" || type == "UINT" ? "N" : type;
}

std::string option_usage(const CLI::Option& option) {
  std::string name = option.get_name(true, true);
  if (const size_t mark = name.find("{false}"); mark != std::string::npos) name.erase(mark, 7);
  const std::string value = option_value(option);
  if (value.empty() || (option.get_positional() && value.size() > kLongestValue)) return name;
  return name + " " + (value.size() > kLongestValue ? "NAME" : value);
}

std::string option_meaning(const CLI::Option& option) {
  std::string meaning = option.get_description();
  if (const std::string value = option_value(option); value.size() > kLongestValue)
    meaning += fmt::format(": {}", fmt::join(split_text(value, '|'), ", "));
  if (option.get_required()) return meaning + " [required]";
  return option.get_default_str().empty() ? meaning : fmt::format("{} [{}]", meaning, option.get_default_str());
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool /*positional*/) const {
  return entry(option_usage(*option), option_meaning(*option));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return entry(command->get_name(), command->get_description());
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return Style::of(STDOUT_FILENO).prose(app->get_description()) + "\n";
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return "\n" + Style::of(STDOUT_FILENO).prose(app->get_footer());
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
  for (size_t at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n")) text.erase(at, 1);
  return text;
}

const std::vector<CommandRow>& command_table() {
  using Command = Options::Command;
  static const std::vector<CommandRow> table = {
      {Command::train,
       "train",
       "Train a model data-parallel",
       {"vitrine train --model small-cnn --data synthetic --devices cpu:0-1 --epochs 2",
        "vitrine train --model alexnet --data cifar10:DIR --devices cuda:0-3 --gpu0-bsz 4",
        "mpirun -np 4 vitrine train --model small-cnn --data synthetic"}},
      {Command::plan,
       "plan",
       "Compute the memory of a train command, without running it",
       {"vitrine plan --devices cuda:0-3 --device-memory 8GiB --batch-size max",
        "vitrine plan --model resnet50 --devices cuda:0 --device-memory 8GiB --frontier"}},
      {Command::eval,
       "eval",
       "Evaluate weights on the test set",
       {"vitrine eval --model small-cnn --data cifar10:DIR --weights model.safetensors"}},
      {Command::compare,
       "compare",
       "Run the same steps under each scheme, side by side",
       {"vitrine compare --model small-cnn --devices cpu:0-3 --report report.html"}},
      {Command::collectives,
       "collectives",
       "Time collectives and check their results, as nccl-tests do",
       {"vitrine collectives all_reduce --devices cpu:0-3 -b 64K -e 64M -f 4"}},
      {Command::lab,
       "lab",
       "Plant known bugs and measure how wrong each makes a result",
       {"vitrine lab", "vitrine lab average-of-averages"}},
      {Command::verify,
       "verify",
       "Find the first step and tensor in which two runs differ",
       {"vitrine verify --a \"--devices cpu:0 --exact --steps 5\" --b \"--devices cpu:0-2 --exact --steps 5\"",
        "vitrine verify --a one.jsonl --b \"mpirun -np 2 vitrine train --exact --steps 5\""}},
      {Command::info, "info", "Show devices, memory, libraries and what is built in", {"vitrine info --json"}},
      {Command::page,
       "page",
       "Write a web page that plans: one file, without a server or a network",
       {"vitrine page --out planner.html"}},
      {Command::lesson,
       "lesson",
       "Lessons on data-parallel training: questions, commands that answer them, exercises",
       {"vitrine lesson", "vitrine lesson 1", "vitrine lesson 1 --answer --run"}}};
  return table;
}

ProgramFlags::ProgramFlags(const SettingTable& table)
    : app("Vitrine: data-parallel training that shows where time and memory go.", "vitrine") {
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "vitrine " VITRINE_VERSION, "Print the version");
  app.get_help_ptr()->description("Print the help");
  app.require_subcommand(1);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const CommandRow& row : command_table()) add_flags(app, row, options, table);
  app.footer(
      fmt::format("vitrine help COMMAND shows the flags of a command, with examples. vitrine man prints the manual "
                  "page, and vitrine completion bash prints the completion of commands and flags for bash and zsh.\n\n"
                  "Results go to stdout, progress and messages to stderr. Exit status: {}.\n",
                  kExitStatuses));
  const auto restrict_to = [](CLI::Option& option, const Values& values) {
    option.transform(range_of(SettingRow{}, values));
  };
  CLI::App& lab_flags = *app.get_subcommand("lab");
  restrict_to(*lab_flags.get_option("NAME"), one_of(lab::experiment_names()));
  for (const char* other : {"NAME", "--json", "--report"})
    lab_flags.get_option("--list")->excludes(lab_flags.get_option(other));
  CLI::App& lesson = *app.get_subcommand("lesson");
  restrict_to(*lesson.get_option("number"), whole_number(1, std::ssize(lesson_pages())));
  lesson.get_option("--answer")->needs(lesson.get_option("number"));
  lesson.get_option("--run")->needs(lesson.get_option("--answer"));
}

}  // namespace vitrine::tools
