// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "runtime/text.h"

namespace vitrine {
namespace {

TEST(Printable, PlainTextIsUnchanged) {
  for (const char* text :
       {"", "rank 2 (pid 77 on node1)", "K\xc3\xb6ln \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x9a\x80", "a\\x1b"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlCharactersArePrintedAsText) {
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\x07"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(printable("a\rb\nc\td\x7f"), "a\\x0db\\x0ac\\x09d\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m")
      << "the CSI of C1";
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\u202e") << "right-to-left override";
}

TEST(Printable, InvalidUtf8IsPrintedAsHexadecimal) {
  EXPECT_EQ(printable("\x9b"
                      "31m\xff"),
            "\\x9b31m\\xff");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above U+10FFFF";
  EXPECT_EQ(printable("\xe6\x9d"), "\\xe6\\x9d") << "cut";
}

TEST(Printable, LineBreaksCanBeKept) {
  EXPECT_EQ(printable_lines("out of memory\n  1 GiB\x1b\r\n"), "out of memory\n  1 GiB\\x1b\\x0d\n");
}

TEST(Printable, LongTextIsTruncated) {
  const std::string shown = printable(std::string(kLongestPrintable + 100, 'x'));
  EXPECT_EQ(shown, std::string(kLongestPrintable, 'x') + "... (100 bytes more)");
}

TEST(Excerpt, OmitsTheMiddleOfLongText) {
  EXPECT_EQ(excerpt("a\tb"), "a\\x09b");
  EXPECT_EQ(excerpt(std::string(100, 'x')), std::string(100, 'x')) << "saying what is omitted would be longer";
  EXPECT_EQ(excerpt(std::string(90, 'a') + std::string(30, 'z')),
            std::string(60, 'a') + "...(40 bytes)..." + std::string(20, 'z'));
}

TEST(Excerpt, CountsEscapedText) {
  EXPECT_EQ(excerpt(std::string(90, '\x01')),
            "\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01...(70 bytes)..."
            "\\x01\\x01\\x01\\x01\\x01");
}

}  // namespace
}  // namespace vitrine
