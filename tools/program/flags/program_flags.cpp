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

/// Refuses values out of range, and rewrites sizes as bytes.
CLI::Validator range_of(const Values& values, bool list) {
  const auto check = [values, list](std::string& text) {
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

CLI::Option& add_switch(CLI::App& app, const SettingRow& row, bool& value) {
  return row.negated() ? *app.add_flag_callback(row.flag, [&value] { value = false; }) : *app.add_flag(row.flag, value);
}

/// requires  `row` outlives `app`      chooses  the command has the row's choice
CLI::Option& add_value(CLI::App& app, const SettingRow& row, Options& o, bool chooses) {
  using List = SettingRow::List;
  const auto set = [&row, &o, chooses](const CLI::results_t& texts) {
    const bool lacks_value = row.may_lack_value && texts.back() == "{}";  // CLI11's word
    const std::string text = lacks_value ? "" : texts.back();
    const bool chosen = chooses && text == row.choice.word;
    if (chooses) o.choices.*row.choice.chosen = chosen;
    if (chosen || (!row.clear.empty() && text == row.clear)) {
      row.field.reset(o);
    } else {
      row.field.read(o, row.list == List::repeated ? texts
                        : row.list == List::commas ? split_text(text, ',')
                                                   : std::vector{text});
    }
    return true;
  };
  CLI::Option& option = *app.add_option(row.flag, set);
  if (row.may_lack_value) option.expected(0, 1);
  if (row.list == List::repeated) {
    option.multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    if (!row.flag.starts_with("--")) option.expected(CLI::detail::expected_max_vector_size);
  } else if (row.shows_default) {
    const Json value = row.field.json(o);
    option.default_str(value.is_boolean() ? (value ? "1" : "0") : text_of(value));
  }
  Values values = row.values;
  const bool limited = values.accepts || !values.words.empty();
  if (chooses && limited) values.words.push_back(row.choice.word);
  const std::string type = row.type.empty() ? row.field.type : row.type;
  option.type_name(chooses && type != "TEXT" ? type + "|" + row.choice.word : type);
  if (limited || row.list == List::commas) option.transform(range_of(values, row.list == List::commas));
  return option;
}

void add_flags(CLI::App& parent, const CommandRow& of, Options& o, const SettingTable& table) {
  CLI::App& app = *parent.add_subcommand(of.name, of.purpose)->group("Commands");
  app.footer(fmt::format("Examples:\n  {}\n", fmt::join(of.examples, "\n  ")));
  const Options::Command command = of.command;
  for (const SettingRow& row : table) {
    if ((row.commands & only(command)) == 0) continue;
    const bool chooses = row.choice.chosen != nullptr && (kRuns & only(command)) != 0;
    const bool is_switch = row.field.on && row.values.words.empty();
    CLI::Option& option = is_switch ? add_switch(app, row, row.field.on(o)) : add_value(app, row, o, chooses);
    const bool differs = (row.help_of.first & only(command)) != 0;
    option.description(differs ? row.help_of.second : row.help + (chooses ? row.choice.help : ""));
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
  return type;
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
      {Command::sample,
       "sample",
       "Let a GPT continue a text",
       {"vitrine sample --model nano-gpt --weights model.safetensors --prompt \"ROMEO:\"",
        "vitrine sample --model gpt2 --weights gpt2/ --prompt-tokens 15496,995 --tokens 20 --temperature 0"}},
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
  const auto restrict_to = [](CLI::Option& option, const Values& values) { option.transform(range_of(values, false)); };
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
