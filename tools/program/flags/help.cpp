// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/help.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "runtime/text.h"
#include "tools/program/text/terminal.h"

namespace vitrine::tools {

namespace {

constexpr size_t kTextColumn = 34;
constexpr int kLeastText = 30;
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

}  // namespace vitrine::tools
