// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <gtest/gtest.h>

#include "tools/progress.h"
#include "tools/tables.h"

namespace vitrine::tools {
namespace {

TEST(Table, ColumnsLineUp) {
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

TEST(Table, ColourChangesNoWidth) {
  Table table({{"a"}, {"b"}});
  table.add_row({"10", "200"});
  EXPECT_EQ(table.str(Style{true}), "\033[1m a    b\033[0m\n-------\n10  200\n");
}

TEST(Format, NumbersForPeople) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_ms(0.0), "");
  EXPECT_EQ(format_ms(0.1234), "123");
  EXPECT_EQ(format_ms(0.01234), "12.3");
  EXPECT_EQ(format_ms(0.001234), "1.23");
  EXPECT_EQ(format_ms(0.0000123), "0.012");
  EXPECT_EQ(format_share(0.1234), "12.3 %");
  EXPECT_EQ(format_share(0.0), "");
}

TEST(Progress, LineSaysHowFarAndHowFast) {
  EXPECT_EQ(Progress::line("epoch 1/2", 5, 10, 1.5, 1234.4, 3.2), "epoch 1/2  step 5/10  loss 1.5000  1,234 samples/s  4 s left");
  EXPECT_EQ(Progress::line("x", 0, 10, std::numeric_limits<double>::quiet_NaN(), 0.0, 0.0), "x  step 0/10  0 samples/s");
}

TEST(Progress, BarFills) {
  EXPECT_EQ(Progress::bar(0, 4, 4), "[....]");
  EXPECT_EQ(Progress::bar(2, 4, 4), "[##..]");
  EXPECT_EQ(Progress::bar(4, 4, 4), "[####]");
  EXPECT_EQ(Progress::bar(0, 0, 4), "[....]");
}

TEST(Progress, ShortRunOffTheTerminalPrintsNothing) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress("epoch 1/1", 10, file);
    progress.update(1, 64, 2.0);
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace vitrine::tools
