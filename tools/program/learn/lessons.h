// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::tools {

/// A command of a lesson.
struct LessonCommand {
  std::string line;  // "vitrine plan --model ...", or a line for the shell that starts several processes
  int expected_status = 0;

  /// The arguments of the program, where the command is one of vitrine's; otherwise empty.
  std::vector<std::string> arguments() const;
};

/// A page of docs/lessons: "# Lesson N: TITLE", the question, and the sections "Run it", "What to look at", "Why",
/// "Exercise" and "Answer". The commands are in the first blocks of "Run it" and of "Answer":
///   ```console exact           or "varies", where times or other figures of the machine are printed; then "exit=1" if
///     that is the expected status
///   $ vitrine plan --model ...
///   what the command printed
///   ```
/// Where that is a loop of the shell, "<!-- page: vitrine plan ... -->" is the planner's page's command.
struct Lesson {
  int number = 0;
  std::string title, question, look_at, why, exercise, answer;
  LessonCommand command, answer_command;
};

/// The pages, in order, as they were when the program was built.
std::span<const std::string_view> lesson_pages();

/// Reads a page. throws std::invalid_argument naming what the page lacks.
Lesson parse_lesson(std::string_view page);

/// A section as text for a terminal: paragraphs are one line each, links are their words, and comments and marks of
/// bold text are left out.
std::string plain_text(std::string_view markdown);

}  // namespace vitrine::tools
