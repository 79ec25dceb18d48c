// SPDX-License-Identifier: Apache-2.0
#include "tools/program/learn/lessons.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

#include "runtime/text.h"

namespace vitrine::tools {

namespace {

constexpr std::string_view kCodeFence = "```";

std::vector<std::string> page_lines(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string without_blank_ends(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of('\n'), text.size());
  return text.substr(begin, text.find_last_not_of('\n') + 1 - begin);
}

/// The page's parts by heading; the part before the first heading of a section has the name "".
std::map<std::string, std::string> sections_of(const std::vector<std::string>& lines) {
  std::map<std::string, std::string> sections;
  std::string name;
  bool in_code = false;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].starts_with(kCodeFence)) in_code = !in_code;
    if (!in_code && lines[i].starts_with("## ")) {
      name = lines[i].substr(3);
    } else {
      sections[name] += lines[i] + "\n";
    }
  }
  for (auto& [heading, text] : sections) text = without_blank_ends(text);
  return sections;
}

/// Reads "# Lesson N: TITLE".
void read_title(const std::string& line, Lesson& lesson) {
  constexpr std::string_view kBefore = "# Lesson ";
  const size_t colon = std::min(line.find(": "), line.size());
  if (line.starts_with(kBefore) && colon < line.size()) {
    const std::optional<int> number =
        parse_number<int>(std::string_view(line).substr(kBefore.size(), colon - kBefore.size()));
    lesson.number = number.value_or(0);
    if (number) lesson.title = line.substr(colon + 2);
  }
  if (lesson.title.empty())
    throw std::invalid_argument(fmt::format("a lesson begins with '# Lesson N: TITLE', not '{}'", line));
}

/// Reads the first block of a section.
LessonCommand read_command(int lesson, const char* section, const std::string& text) {
  const std::vector<std::string> lines = page_lines(text);
  const auto block =
      std::find_if(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("```console "); });
  if (block == lines.end() || block + 1 == lines.end() || !block[1].starts_with("$ ")) {
    throw std::invalid_argument(
        fmt::format("lesson {}: '{}' has no block of '```console' with a line '$ COMMAND'", lesson, section));
  }
  LessonCommand command{block[1].substr(2)};
  for (auto line = block + 2; line < lines.end() && command.line.ends_with('\\'); ++line)
    command.line.replace(command.line.size() - 1, 1,
                         line->substr(std::min(line->find_first_not_of(' '), line->size())));
  const size_t status = block->find("exit=");
  if (status != std::string::npos) {
    const std::optional<int> number = parse_number<int>(std::string_view(*block).substr(status + 5));
    if (!number) throw std::invalid_argument(fmt::format("lesson {}: '{}' has no number at its end", lesson, *block));
    command.expected_status = *number;
  }
  return command;
}

/// Text between the lines of code: "[words](target)" becomes words.
std::string without_marks(const std::string& line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const size_t middle = line[i] == '[' ? line.find("](", i) : std::string::npos;
    const size_t end = middle == std::string::npos ? middle : line.find(')', middle);
    if (end != std::string::npos) {
      text += line.substr(i + 1, middle - i - 1);
      i = end;
    } else if (line.compare(i, 2, "**") == 0) {
      ++i;
    } else {
      text += line[i];
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> LessonCommand::arguments() const {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.empty() || words.front() != "vitrine") return {};
  words.erase(words.begin());
  return words;
}

Lesson parse_lesson(std::string_view page) {
  const std::vector<std::string> lines = page_lines(page);
  if (lines.empty()) throw std::invalid_argument("the page of a lesson is empty");
  Lesson lesson;
  read_title(lines.front(), lesson);
  const std::map<std::string, std::string> sections = sections_of(lines);
  const auto section = [&](const std::string& name) {
    const auto found = sections.find(name);
    if (found != sections.end() && !found->second.empty()) return found->second;
    throw std::invalid_argument(
        fmt::format("lesson {} has no {}", lesson.number, name.empty() ? "question" : "section '" + name + "'"));
  };
  lesson.question = section("");
  lesson.command = read_command(lesson.number, "Run it", section("Run it"));
  lesson.look_at = section("What to look at");
  lesson.why = section("Why");
  lesson.exercise = section("Exercise");
  lesson.answer = section("Answer");
  lesson.answer_command = read_command(lesson.number, "Answer", lesson.answer);
  return lesson;
}

std::string plain_text(std::string_view markdown) {
  std::string text;
  bool in_code = false, in_paragraph = false, in_comment = false;
  for (const std::string& line : page_lines(markdown)) {
    if (line.starts_with(kCodeFence)) {
      in_code = !in_code;
      in_paragraph = false;
      continue;
    }
    in_comment = in_comment || (!in_code && line.starts_with("<!--"));
    if (in_comment) {
      in_comment = line.find("-->") == std::string::npos;
      continue;
    }
    const bool starts_paragraph = in_code || line.empty() || line.starts_with("* ");
    if (!text.empty()) text += in_paragraph && !starts_paragraph ? " " : "\n";
    const size_t indentation =
        in_paragraph && !starts_paragraph ? std::min(line.find_first_not_of(' '), line.size()) : 0;
    text += in_code ? "    " + line : without_marks(line.substr(indentation));
    in_paragraph = !in_code && !line.empty();
  }
  return text;
}

}  // namespace vitrine::tools
