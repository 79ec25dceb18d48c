// SPDX-License-Identifier: Apache-2.0
#include "tools/program/learn/lessons.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/text.h"
#include "tests/tools/settings_reference.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {
namespace {

constexpr const char* kPage = R"(# Lesson 3: What is it?

A question
in two lines?

## Run it

```console varies exit=1
$ vitrine plan --model mlp
## not a heading
```

## What to look at

* a **row** of
  the table

## Why

See [the page](../memory.md).

## Exercise

Do it.

## Answer

Done:

<!-- CI: parse -->
```console exact
$ vitrine info
```
)";

TEST(LessonPage, HasACommandAndSections) {
  const Lesson lesson = parse_lesson(kPage);
  EXPECT_EQ(lesson.number, 3);
  EXPECT_EQ(lesson.title, "What is it?");
  EXPECT_EQ(plain_text(lesson.question), "A question in two lines?");
  EXPECT_EQ(lesson.command.line, "vitrine plan --model mlp");
  EXPECT_EQ(lesson.command.arguments(), words("plan --model mlp"));
  EXPECT_EQ(lesson.command.expected_status, 1);
  EXPECT_EQ(lesson.answer_command.line, "vitrine info");
  EXPECT_EQ(lesson.answer_command.expected_status, 0);
  EXPECT_EQ(plain_text(lesson.look_at), "* a row of the table");
  EXPECT_EQ(plain_text(lesson.why), "See the page.");
  EXPECT_EQ(plain_text(lesson.answer), "Done:\n\n    $ vitrine info");
}

TEST(LessonPage, ACommandMayHaveSeveralLines) {
  std::string page = kPage;
  page.replace(page.find("$ vitrine info\n"), 15, "$ for n in 1 2; do \\\n    vitrine info; \\\n  done\nprinted\n");
  EXPECT_EQ(parse_lesson(page).answer_command.line, "for n in 1 2; do vitrine info; done");
}

TEST(LessonPage, SaysWhatItLacks) {
  const auto without = [](const std::string& part) {
    std::string page = kPage;
    page.erase(page.find(part), part.size());
    return error_of<std::invalid_argument>([&] { parse_lesson(page); });
  };
  expect_contains(without("# Lesson 3: "), "begins with");
  expect_contains(without("A question\nin two lines?\n"), "no question");
  expect_contains(without("$ vitrine plan --model mlp\n"), "Run it");
  expect_contains(without("Do it.\n"), "'Exercise'");
  expect_contains(without("## Answer\n"), "'Answer'");
  expect_contains(without("$ vitrine info\n"), "'Answer' has no block");
}

TEST(LessonPage, KeepsCodeAsItIs) {
  EXPECT_EQ(plain_text("a\n\n<!-- b\n c -->\nd\n"), "a\n\nd");
  EXPECT_EQ(plain_text("a\n\n```\n[i](j) **\n  k\n```\nb"), "a\n\n    [i](j) **\n      k\nb");
}

TEST(Lessons, AreThePagesOfTheDocuments) {
  std::vector<std::string> pages;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_path("docs/lessons"))) {
    if (entry.path().filename() == "README.md") continue;
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    pages.push_back(text.str());
  }
  std::ranges::sort(pages, {}, [](const std::string& page) { return parse_lesson(page).number; });
  EXPECT_TRUE(std::equal(pages.begin(), pages.end(), lesson_pages().begin(), lesson_pages().end()))
      << pages.size() << " pages in docs/lessons; list each in tools/program/CMakeLists.txt";
}

TEST(Lessons, AreNumberedAndTheirCommandsParse) {
  int number = 0;
  for (const std::string_view page : lesson_pages()) {
    const Lesson lesson = parse_lesson(page);
    EXPECT_EQ(lesson.number, ++number);
    EXPECT_EQ(page.find("\n|"), std::string_view::npos) << "narrow terminals break a table: show output of commands";
    for (const LessonCommand& command : {lesson.command, lesson.answer_command}) {
      if (command.arguments().empty()) continue;
      EXPECT_EQ(command.line.find_first_of("'\"$|;&<>*"), std::string::npos) << "needs a shell: " << command.line;
      EXPECT_EQ(parse_command_line(command.arguments()).error, "") << command.line;
    }
  }
}

TEST(FlagReference, NamesEachFlagOnceWithItsCommands) {
  std::map<std::string, std::string> rows;
  std::istringstream text(flag_reference());
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string flag = line.substr(3, line.find_first_of(" `", 3) - 3);
    EXPECT_TRUE(rows.emplace(flag, line).second) << flag << " has two rows";
  }
  expect_contains(rows["--mode"], "`--mode dp\\|balanced\\|criterion\\|ddp\\|zero1\\|zero2\\|zero3\\|auto`");
  expect_contains(rows["--seed"], "| train, plan, compare, sample |", "[0]");
  expect_contains(rows["--lr"], "[0.001] |");
  expect_contains(rows["--steps"], "<br>compare: ");
  expect_contains(rows["-b,--minbytes"], "| collectives |");
  expect_contains(rows["--weights"], "required");
  EXPECT_FALSE(rows.contains("--checkpoint-segments")) << "a deprecated name";
  EXPECT_FALSE(rows.contains("-h,--help"));
}

}  // namespace
}  // namespace vitrine::tools
