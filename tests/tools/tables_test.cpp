// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/tables.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <thread>

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tools/program/text/progress.h"

namespace vitrine::tools {
namespace {

TEST(Table, AlignsColumns) {
  Table table({{"name", Table::Align::left}, {"ms"}}, "Title");
  table.add_row({"forward", "1.25"});
  table.add_rule();
  table.add_row({"all"});
  table.set_hint("Read it.");
  EXPECT_EQ(table.str(Style{}),
            "Title\n"
            "name       ms\n"
            "-------------\n"
            "forward  1.25\n"
            "-------------\n"
            "all\n"
            "Read it.\n");
}

/// Classes have the names of folders, and lines of files, which may hold what a terminal obeys.
TEST(Table, ShowsWhatATerminalWouldObey) {
  Table table({{"\033[31mclass"}});
  table.add_row({"\033]0;title\007"});
  EXPECT_EQ(table.str(Style{}), "   \\x1b[31mclass\n----------------\n\\x1b]0;title\\x07\n");
}

TEST(Table, ColorDoesNotChangeWidths) {
  Table table({{"a"}, {"b"}});
  table.add_row({"10", "200"});
  EXPECT_EQ(table.str(Style{true}), "\033[1m a    b\033[0m\n-------\n10  200\n");
}

TEST(Table, IsNeverWiderThanTheTerminal) {
  std::vector<Table::Column> columns = {{"phase", Table::Align::left}};
  std::vector<std::string> cells = {"scatter_grad"};
  for (int d = 0; d < 16; ++d) {
    columns.push_back({"cpu:" + std::to_string(d)});
    columns.push_back({"share"});
    cells.insert(cells.end(), {"123", std::to_string(d) + ".5 %"});
  }
  columns.push_back({"waits most for", Table::Align::left});
  cells.emplace_back(
      "the gradients of cpu:3, which were late in every step of this run, and a "
      "word-that-is-longer-than-any-terminal-is-wide");
  Table table(columns,
              "A title that says which devices these are, how many steps were measured, and what the columns mean, at "
              "some length");
  table.add_row(cells);
  table.add_rule();
  table.set_hint(
      "A hint of one long line, which says how the table is to be read: each device's column adds up to its step, and "
      "so on.");
  for (const int width : {40, 60, 80, 120}) {
    Style style;
    style.width = width;
    const std::string text = table.str(style);
    EXPECT_LE(longest_line(text), static_cast<size_t>(width)) << text;
    for (int d = 0; d < 16; ++d) {
      expect_contains(text, "cpu:" + std::to_string(d), std::to_string(d) + ".5 %");
    }
    EXPECT_NE(text.find("scatter_grad"), text.rfind("scatter_grad")) << "every block names its rows\n" << text;
  }
}

TEST(Table, IsWholeWithoutALimit) {
  Table table({{"row", Table::Align::left}, {"words", Table::Align::left}, {"number"}});
  table.add_row({"a", std::string(300, 'w') + " end", "1"});
  table.set_hint(std::string(200, 'h') + " hint");
  const std::string text = table.str(Style{});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  expect_lacks(text, "Not shown");
}

TEST(Table, LeavesOutSpareColumnsBeforeItIsSplit) {
  const auto right = Table::Align::right;
  Table table({{"row"}, {"0123456789"}, {"important.", right, 1}, {"unimportant", right, 2}, {"abcdefghij"}});
  table.add_row({"row", "1", "2", "3", "4"});
  table.add_row({"bar", "", "", "3"});
  table.set_hint("unimportant: a note.");
  const auto text = [&](int width) { return table.str(Style{false, width}); };
  expect_lacks(text(52), "Not shown");
  expect_contains(text(51), "0123456789  important.  abcdefghij\n", "Not shown, for lack of width: unimportant.");
  expect_contains(text(30), "0123456789  abcdefghij\n");
  expect_lacks(text(51), "a note", "bar");
}

TEST(Table, ColumnsUnderOneHeadingMoveTogether) {
  Table table({{"row"}, {"time"}, {"in place: time"}, {"time"}});
  table.add_row({"1", "2", "3", "4"});
  expect_contains(table.str(Style{false, 26}), "row  in place: time  time\n");
  expect_contains(table.str(Style{false, 24}), "row  in place: time\n");
}

TEST(Table, ValuesToBeCopiedStayWhole) {
  Table table({{"bytes"}, {"--recompute", Table::Align::verbatim}});
  const std::string value = "features.0-features.12,features.14-features.20,classifier.1";
  table.add_row({"1", value});
  expect_contains(table.str(Style{false, 40}), "    1  " + value + "\n");
}

TEST(Wrap, BreaksBetweenWordsAndKeepsLinesAndIndentation) {
  EXPECT_EQ(wrap("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrap("  for cpu:1", 8), "  for\n  cpu:1");
  EXPECT_EQ(wrap("abcdefgh", 5), "abcde\nfgh");
  EXPECT_EQ(wrap("a\n\nb", 5), "a\n\nb");
  EXPECT_EQ(wrap("", 5), "");
  EXPECT_EQ(wrap("in /a/long/path now", 6, LongWords::kept), "in\n/a/long/path\nnow");
}

/// Sets an environment variable for its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Style, WidthComesFromColumnsOrIsUnlimited) {
  unsetenv("COLUMNS");
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(Style::of(fileno(file)).width, Style::kUnlimited);
  EXPECT_FALSE(Style::of(fileno(file)).color);
  const std::string words = "one" + std::string(100, ' ') + "two";
  EXPECT_EQ(Style::of(fileno(file)).prose(words), words) << "lines in a file stay whole";
  {
    const Variable columns("COLUMNS", "77");
    EXPECT_EQ(Style::of(fileno(file)).width, 77);
    EXPECT_EQ(Style::of(fileno(file)).prose(words), "one\ntwo");
  }
  {
    const Variable columns("COLUMNS", "3");
    EXPECT_EQ(Style::of(fileno(file)).width, Style::kLeastWidth);
  }
  for (const char* wrong : {"", "0", "-5", "80x", "99999999999"}) {
    const Variable columns("COLUMNS", wrong);
    EXPECT_EQ(Style::of(fileno(file)).width, Style::kUnlimited) << wrong;
  }
  std::fclose(file);
}

/// A pseudo terminal of 66 columns.
class Terminal {
 public:
  Terminal() {
    winsize size{};
    size.ws_col = 66;
    size.ws_row = 20;
    if (openpty(&leader_, &follower_, nullptr, nullptr, &size) != 0) leader_ = follower_ = -1;
  }
  ~Terminal() {
    close(leader_);
    close(follower_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  int descriptor() const { return follower_; }

 private:
  int leader_ = -1, follower_ = -1;
};

TEST(Style, TerminalsHaveColorUnlessTheyAreDumbOrOutputIsRedirected) {
  for (const char* variable : {"COLUMNS", "NO_COLOR", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"}) unsetenv(variable);
  const Terminal terminal;
  ASSERT_GE(terminal.descriptor(), 0);
  const Variable kind("TERM", "xterm");
  EXPECT_TRUE(Style::of(terminal.descriptor()).color);
  EXPECT_EQ(Style::of(terminal.descriptor()).width, 66);
  {
    const Variable no_color("NO_COLOR", "1");
    EXPECT_FALSE(Style::of(terminal.descriptor()).color);
    EXPECT_TRUE(is_terminal(terminal.descriptor()));
  }
  for (const auto& [name, value] : {std::pair{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "1"}}) {
    const Variable launcher(name, value);
    EXPECT_FALSE(Style::of(terminal.descriptor()).color) << name;
    EXPECT_FALSE(is_terminal(terminal.descriptor())) << name;
  }
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(Style::of(terminal.descriptor()).color);
  EXPECT_FALSE(is_terminal(terminal.descriptor()));
}

TEST(Format, NumbersAreReadable) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_rate(0.0), "0");
  EXPECT_EQ(format_rate(0.3137), "0.31");
  EXPECT_EQ(format_rate(9.51), "9.5");
  EXPECT_EQ(format_rate(1234.5), "1,235");
  EXPECT_EQ(format_ms(0.0), "");
  EXPECT_EQ(format_ms(0.1234), "123");
  EXPECT_EQ(format_ms(0.01234), "12.3");
  EXPECT_EQ(format_ms(0.001234), "1.23");
  EXPECT_EQ(format_ms(0.0000123), "0.012");
  EXPECT_EQ(format_share(0.1234), "12.3 %");
  EXPECT_EQ(format_share(0.0), "");
}

TEST(Format, DurationsHaveTwoUnits) {
  EXPECT_EQ(format_duration(0.84), "0.8 s");
  EXPECT_EQ(format_duration(9.96), "10 s");
  EXPECT_EQ(format_duration(59.6), "1 min 0 s");
  EXPECT_EQ(format_duration(1290), "21 min 30 s");
  EXPECT_EQ(format_duration(3.0 * 3600 + 20 * 60 + 29), "3 h 20 min");
  EXPECT_EQ(format_duration(7199.9), "2 h 0 min");
}

TEST(Progress, LineShowsProgressAndSpeed) {
  EXPECT_EQ(Progress::line("epoch 1/2", 5, 10, 1.5, 1234.4, 3.2),
            "epoch 1/2  step 5/10  loss 1.5000  1,234 samples/s  3.2 s left");
  EXPECT_EQ(Progress::line("x", 0, 10, std::numeric_limits<double>::quiet_NaN(), 0.0, 0.0),
            "x  step 0/10  0 samples/s");
}

TEST(Progress, BarGrows) {
  EXPECT_EQ(Progress::bar(0, 4, 4), "[....]");
  EXPECT_EQ(Progress::bar(2, 4, 4), "[##..]");
  EXPECT_EQ(Progress::bar(4, 4, 4), "[####]");
  EXPECT_EQ(Progress::bar(0, 0, 4), "[....]");
}

TEST(Progress, BarFitsTheWidthOrIsOmitted) {
  const std::string text(30, 'x');
  EXPECT_EQ(Progress::with_bar(text, 1, 2, 80), "[############............] " + text);
  EXPECT_EQ(Progress::with_bar(text, 1, 2, 43), "[#####.....] " + text);
  EXPECT_EQ(Progress::with_bar(text, 1, 2, 40), text);
  EXPECT_EQ(Progress::with_bar(text, 1, 2, 20), text.substr(0, 20));
}

std::string content(std::FILE* file) {
  std::string text(static_cast<size_t>(std::ftell(file)), ' ');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  return text;
}

TEST(Progress, LogsEveryNthStep) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress("epoch 1/1", 10, {false, 4}, file);
    for (int step = 1; step <= 10; ++step) progress.update(step, 64 * step, 2.0);
    Progress quiet("epoch 1/1", 10, {true, 1}, file);
    quiet.update(1, 64, 2.0);
  }
  const std::string text = content(file);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  expect_contains(text, "epoch 1/1  step 4/10  loss 2.0000", "step 8/10");
  std::fclose(file);
}

TEST(Progress, TheTimeLeftIsTheRuns) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  Progress progress("epoch 1/10", 2, {.log_every = 1, .steps_after = 18}, file);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  progress.update(1, 64, 2.0);
  const std::string text = content(file);
  const size_t end = text.find(" s left"), begin = text.rfind(' ', end - 1);
  ASSERT_NE(end, std::string::npos) << text;
  EXPECT_GE(std::stod(text.substr(begin, end - begin)), 19 * 0.06 - 0.05) << text;
  std::fclose(file);
}

TEST(Progress, ShortRunOffTheTerminalPrintsNothing) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress("epoch 1/1", 10, {}, file);
    progress.update(1, 64, 2.0);
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace vitrine::tools
