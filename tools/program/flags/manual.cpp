// SPDX-License-Identifier: Apache-2.0
// The manual page, and the completion of flags.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <vector>

#include <fmt/ranges.h>

#include "runtime/text.h"
#include "tools/program/flags/program_flags.h"
#include "tools/program/text/json_text.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// The options of `app` that its help shows, without --help itself.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* o) { return !o->get_group().empty() && o->get_name(true, true) != "-h,--help"; });
}

/// Text for a manual page.
std::string roff(std::string text) {
  replace_all(text, "\\", "\\e");
  replace_all(text, "-", "\\-");
  replace_all(text, "'", "\\(aq");
  return text.starts_with('.') ? "\\&" + text : text;
}

std::string roff_item(const std::string& name, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(name), roff(text));
}

/// The words among the values that an option takes: "max" of "N|max".
std::vector<std::string> value_words(const CLI::Option& option) {
  std::vector<std::string> words = split_text(option_value(option), '|');
  if (words.size() == 1) return {};
  std::erase_if(words, [](const std::string& word) { return std::isupper(static_cast<unsigned char>(word[0])) != 0; });
  return words;
}

}  // namespace

std::vector<FlagEntry> all_flags(const ProgramFlags& program) {
  std::vector<FlagEntry> flags;
  for (const CLI::App* command : program.app.get_subcommands({})) {
    for (const CLI::Option* option : shown_options(*command)) {
      const std::string name = option->get_name(true, true);
      auto flag = std::ranges::find_if(flags, [&](const FlagEntry& f) { return f.name == name; });
      if (flag == flags.end()) {
        const auto last = std::find_if(flags.rbegin(), flags.rend(),
                                       [&](const FlagEntry& f) { return f.group == option->get_group(); });
        flag = flags.insert(last == flags.rend() ? flags.end() : last.base(),
                            FlagEntry{name, option_usage(*option), option->get_group(), {}});
      }
      const std::string meaning = option_meaning(*option);
      auto variant = std::ranges::find_if(flag->variants, [&](const FlagVariant& v) { return v.meaning == meaning; });
      if (variant == flag->variants.end()) variant = flag->variants.insert(variant, FlagVariant{meaning, {}});
      variant->commands.push_back(command->get_name());
    }
  }
  return flags;
}

std::string what_differs(const std::string& meaning, const std::string& first) {
  const size_t end = meaning.rfind(" [");
  return end != std::string::npos && end == first.rfind(" [") && meaning.compare(0, end, first, 0, end) == 0
             ? meaning.substr(end + 1)
             : meaning;
}

std::string man_page(const SettingTable& table) {
  const ProgramFlags program(table);
  std::string text = fmt::format(
      ".TH VITRINE 1 \"\" \"vitrine {}\" \"User Commands\"\n.ad l\n.SH NAME\nvitrine \\- {}\n.SH SYNOPSIS\n.B vitrine\n"
      ".I COMMAND\n[\\fIFLAGS\\fR]\n.SH COMMANDS\n",
      VITRINE_VERSION, "data\\-parallel training that shows where time and memory go");
  for (const CommandRow& row : command_table()) text += roff_item(row.name, row.purpose);
  text += roff_item("help COMMAND", "Explain a command") +
          roff_item("completion bash", "Print the completion of commands and flags for bash and zsh") +
          roff_item("completion json", "Print commands, flags and their meanings as JSON, for programs") +
          roff_item("man", "Print this page");
  std::string group;
  for (const FlagEntry& flag : all_flags(program)) {
    if (flag.group != group) text += fmt::format(".SH {}\n", roff(flag.group));
    group = flag.group;
    std::string meaning;
    for (const FlagVariant& variant : flag.variants)
      meaning +=
          fmt::format("{}{} ({})", meaning.empty() ? "" : "; ",
                      meaning.empty() ? variant.meaning : what_differs(variant.meaning, flag.variants[0].meaning),
                      fmt::join(variant.commands, ", "));
    text += roff_item(flag.usage, meaning);
  }
  text += ".SH EXAMPLES\n.nf\n";
  for (const CommandRow& row : command_table()) {
    for (const char* example : row.examples) text += roff(example) + "\n";
  }
  return text + fmt::format(".fi\n.SH EXIT STATUS\n{}\n", kExitStatuses);
}

std::string flags_json(const SettingTable& table) {
  const ProgramFlags program(table);
  Json commands = Json::object();
  for (const CLI::App* command : program.app.get_subcommands({})) {
    Json& flags = commands[command->get_name()];
    flags = {{"purpose", command->get_description()}, {"flags", Json::array()}};
    for (const CLI::Option* option : shown_options(*command)) {
      std::vector<std::string> names = option->get_lnames();
      if (names.empty()) names.push_back(option->get_name(true));
      flags["flags"].push_back({{"names", names},
                                {"value", option_value(*option)},
                                {"positional", option->get_positional()},
                                {"repeated", option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll},
                                {"group", option->get_group()},
                                {"meaning", option_meaning(*option)}});
    }
  }
  return json_text(commands) + "\n";
}

std::string bash_completion(const SettingTable& table) {
  const ProgramFlags program(table);
  std::map<std::string, std::set<std::string>> words_of;  // of each flag that takes a value
  std::string commands = "help version completion man", of_command;
  for (const CLI::App* command : program.app.get_subcommands({})) {
    std::string known = "--help";
    for (const CLI::Option* option : shown_options(*command)) {
      const std::vector<std::string> words = value_words(*option);
      std::vector<std::string> names;
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
      if (names.empty()) known += fmt::format(" {}", fmt::join(words, " "));
      for (const std::string& name : names) {
        known += " " + name;
        if (option->get_items_expected_min() > 0) words_of[name].insert(words.begin(), words.end());
      }
    }
    commands += " " + command->get_name();
    of_command += fmt::format("      {}) words=\"{}\" ;;\n", command->get_name(), known);
  }
  std::string of_flag, free;
  for (const auto& [name, words] : words_of) {
    if (words.empty())
      free += (free.empty() ? "" : "|") + name;
    else
      of_flag += fmt::format("    {}) words=\"{}\" ;;\n", name, fmt::join(words, " "));
  }
  return fmt::format(R"(# Completion of vitrine for bash; in zsh: autoload -U bashcompinit && bashcompinit
_vitrine() {{
  local words= previous=${{COMP_WORDS[COMP_CWORD-1]}}
  [[ $previous == = ]] && previous=${{COMP_WORDS[COMP_CWORD-2]}}
  case $previous in
    vitrine|*/vitrine|help) words="{}" ;;
    completion) words="bash json" ;;
{}    {}) ;;  # a number, a name or a file
    *) case ${{COMP_WORDS[1]}} in
{}    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]#=}}"))
}}
complete -o default -F _vitrine vitrine
)",
                     commands, of_flag, free, of_command);
}

}  // namespace vitrine::tools
