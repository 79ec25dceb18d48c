// SPDX-License-Identifier: Apache-2.0
// `vitrine lesson`: the list of lessons, a lesson with its command, or the answer to its exercise.
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/commands/commands.h"
#include "tools/program/learn/lessons.h"
#include "tools/program/process/shell.h"
#include "tools/program/text/terminal.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

/// plain_text() with its paragraphs broken to lines of the terminal. Code stays as it is: a command can be copied, and
/// a table keeps its columns.
std::string wrapped_text(const std::string& markdown, const Style& style) {
  std::string text;
  for (const std::string& line : split_text(plain_text(markdown), '\n')) {
    text.append(text.empty() ? "" : "\n").append(line.starts_with("    ") ? line : wrap(line, style.width));
  }
  return text;
}

void print_section(const char* title, const std::string& markdown, const Style& style) {
  fmt::print("{}\n{}\n\n", style.bold(title), wrapped_text(markdown, style));
}

void list_lessons(const Style& style) {
  for (const std::string_view page : lesson_pages()) {
    const Lesson lesson = parse_lesson(page);
    const std::string name = fmt::format("vitrine lesson {}", lesson.number);
    fmt::print("{}\n",
               style.prose(fmt::format("{}  {}", name, lesson.title)).replace(0, name.size(), style.bold(name)));
  }
  fmt::print("\n{}\n", style.prose("A lesson asks a question, runs a command and explains what it prints. It ends with "
                                   "an exercise; --answer prints the answer, and --run runs its command."));
}

/// Runs the lesson's line of the shell. Returns its exit status.
int run_shell_line(int lesson, const std::string& line) {
  if (line.find("mpirun") == std::string::npos) return run_in_shell(line);
  if (VITRINE_BUILD_MPI == 0) {
    throw UnsupportedError(
        fmt::format("lesson {} starts several processes with mpirun, and MPI is not built in; install libopenmpi-dev "
                    "and openmpi-bin, and build again",
                    lesson));
  }
  if (std::system("command -v mpirun >/dev/null") != 0) {
    throw UnsupportedError(
        fmt::format("lesson {} starts several processes with mpirun, which is not on PATH; install it with: apt-get "
                    "install openmpi-bin",
                    lesson));
  }
  // It refuses with status 1, which a lesson may expect of its command.
  const bool allowed =
      std::getenv("OMPI_ALLOW_RUN_AS_ROOT") != nullptr && std::getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") != nullptr;
  if (geteuid() == 0 && !allowed && std::system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") == 0) {
    throw UnsupportedError(
        fmt::format("lesson {} starts processes with Open MPI's mpirun, which refuses to run as root; run it as "
                    "another user, or set "
                    "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                    lesson));
  }
  return run_in_shell(line);
}

/// Prints the command and runs it. Returns 0 if it ended with the status that the lesson expects.
int run_command(int lesson, const LessonCommand& command, const RunArguments& run_arguments, const Style& style) {
  fmt::print("{}\n\n", style.bold("$ " + command.line));
  std::fflush(stdout);
  const std::vector<std::string> arguments = command.arguments();
  const int status = arguments.empty() ? run_shell_line(lesson, command.line) : run_arguments(arguments);
  if (status == command.expected_status) return kExitOk;
  std::fflush(stdout);
  fmt::print(stderr, "vitrine: the command of lesson {} ended with status {}, not {} as expected\n", lesson, status,
             command.expected_status);
  return status == kExitOk ? kExitFailure : status;
}

}  // namespace

int run_lesson(const Options& options, const RunArguments& run_arguments) {
  const Style style = Style::of(STDOUT_FILENO);
  if (options.lesson == 0) {
    list_lessons(style);
    return kExitOk;
  }
  const Lesson lesson = parse_lesson(lesson_pages()[static_cast<size_t>(options.lesson - 1)]);
  fmt::print("{}\n\n", style.bold(style.prose(fmt::format("Lesson {}: {}", lesson.number, lesson.title))));
  if (options.answer) {
    print_section("Exercise", lesson.exercise, style);
    if (!options.run_answer) {
      print_section("Answer", lesson.answer, style);
      return kExitOk;
    }
    const size_t block = lesson.answer.find("```console");  // what the run prints
    const std::string before = lesson.answer.substr(0, block);
    print_section("Answer", before.substr(0, before.find_last_not_of('\n') + 1), style);
    const int status = run_command(lesson.number, lesson.answer_command, run_arguments, style);
    const size_t after = lesson.answer.find("\n```", block) + 4;
    if (status == kExitOk && after < lesson.answer.size())
      fmt::print("\n{}\n", wrapped_text(lesson.answer.substr(after + 2), style));
    return status;
  }
  fmt::print("{}\n\n", wrapped_text(lesson.question, style));
  if (const int status = run_command(lesson.number, lesson.command, run_arguments, style); status != kExitOk)
    return status;
  fmt::print("\n");
  print_section("What to look at", lesson.look_at, style);
  print_section("Why", lesson.why, style);
  print_section("Exercise", lesson.exercise, style);
  fmt::print("vitrine lesson {} --answer prints the answer; with --run it also runs the answer's command.\n",
             lesson.number);
  return kExitOk;
}

}  // namespace vitrine::tools
