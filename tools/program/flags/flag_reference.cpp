// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <vector>

#include <fmt/ranges.h>

#include "runtime/text.h"
#include "tools/program/flags/program_flags.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

struct FlagVariant {
  std::string meaning;  // with the default
  std::vector<std::string> commands;
};

struct FlagEntry {
  std::string name, usage, group;     // usage: "--batch-size N|max", of the first command that has it
  std::vector<FlagVariant> variants;  // by meaning
};

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Text in a cell of a table.
std::string table_cell(std::string text) {
  replace_all(text, "|", "\\|");
  return text;
}

/// The options of `app` that its help shows, without --help itself.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* o) { return !o->get_group().empty() && o->get_name(true, true) != "-h,--help"; });
}

/// The flags of all commands, each once.
std::vector<FlagEntry> all_flags(const ProgramFlags& program) {
  std::vector<FlagEntry> flags;
  for (const CLI::App* command : program.app.get_subcommands({})) {
    for (const CLI::Option* option : shown_options(*command)) {
      const std::string name = option->get_name(true, true);
      auto flag = std::find_if(flags.begin(), flags.end(), [&](const FlagEntry& f) { return f.name == name; });
      if (flag == flags.end())
        flag = flags.insert(flag, FlagEntry{name, option_usage(*option), option->get_group(), {}});
      const std::string meaning = option_meaning(*option);
      auto variant = std::find_if(flag->variants.begin(), flag->variants.end(),
                                  [&](const FlagVariant& v) { return v.meaning == meaning; });
      if (variant == flag->variants.end()) variant = flag->variants.insert(variant, FlagVariant{meaning, {}});
      variant->commands.push_back(command->get_name());
    }
  }
  return flags;
}

/// A meaning beside another one: its default alone, if nothing else differs.
std::string what_differs(const std::string& meaning, const std::string& first) {
  const size_t end = meaning.rfind(" [");
  return end != std::string::npos && end == first.rfind(" [") && meaning.compare(0, end, first, 0, end) == 0
             ? meaning.substr(end + 1)
             : meaning;
}

std::string flag_row(const FlagEntry& flag) {
  const std::string& first = flag.variants.front().meaning;
  std::string meaning = table_cell(first);
  std::vector<std::string> commands = flag.variants.front().commands;
  for (size_t i = 1; i < flag.variants.size(); ++i) {
    const FlagVariant& variant = flag.variants[i];
    meaning +=
        fmt::format("<br>{}: {}", fmt::join(variant.commands, ", "), table_cell(what_differs(variant.meaning, first)));
    commands.insert(commands.end(), variant.commands.begin(), variant.commands.end());
  }
  return fmt::format("| `{}` | {} | {} |\n", table_cell(flag.usage), meaning, fmt::join(commands, ", "));
}

/// Calls `begin` for each group, then `add` for each of its flags.
template <class Begin, class Add>
void for_groups(const std::vector<FlagEntry>& flags, const Begin& begin, const Add& add) {
  std::vector<std::string> groups;
  for (const FlagEntry& flag : flags) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end()) groups.push_back(flag.group);
  }
  for (const std::string& group : groups) {
    begin(group);
    for (const FlagEntry& flag : flags) {
      if (flag.group == group) add(flag);
    }
  }
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

std::string flag_reference(const SettingTable& table) {
  std::string text;
  for_groups(
      all_flags(ProgramFlags(table)),
      [&](const std::string& group) {
        text += fmt::format("{}### {}\n\n| flag | meaning [default] | commands |\n| --- | --- | --- |\n",
                            text.empty() ? "" : "\n", group);
      },
      [&](const FlagEntry& flag) { text += flag_row(flag); });
  return text;
}

std::string man_page(const SettingTable& table) {
  const ProgramFlags program(table);
  std::string text = fmt::format(
      ".TH VITRINE 1 \"\" \"vitrine {}\" \"User Commands\"\n.ad l\n.SH NAME\nvitrine \\- {}\n.SH SYNOPSIS\n.B vitrine\n"
      ".I COMMAND\n[\\fIFLAGS\\fR]\n.SH COMMANDS\n",
      VITRINE_VERSION, "data\\-parallel training that shows where time and memory go");
  for (const CommandRow& row : command_table()) text += roff_item(row.name, row.purpose);
  text += roff_item("help COMMAND", "Explain a command") +
          roff_item("completion bash", "Print what completes commands and flags in bash and zsh") +
          roff_item("man", "Print this page");
  for_groups(
      all_flags(program), [&](const std::string& group) { text += fmt::format(".SH {}\n", roff(group)); },
      [&](const FlagEntry& flag) {
        std::string meaning;
        for (const FlagVariant& variant : flag.variants)
          meaning +=
              fmt::format("{}{} ({})", meaning.empty() ? "" : "; ",
                          meaning.empty() ? variant.meaning : what_differs(variant.meaning, flag.variants[0].meaning),
                          fmt::join(variant.commands, ", "));
        text += roff_item(flag.usage, meaning);
      });
  text += ".SH EXAMPLES\n.nf\n";
  for (const CommandRow& row : command_table()) {
    for (const char* example : row.examples) text += roff(example) + "\n";
  }
  return text + fmt::format(".fi\n.SH EXIT STATUS\n{}\n", kExitStatuses);
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
    completion) words=bash ;;
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
