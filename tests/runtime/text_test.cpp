// SPDX-License-Identifier: Apache-2.0
#include "runtime/text.h"

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

namespace vitrine {
namespace {

using Items = std::vector<std::string>;

TEST(Text, NumberIsTheWholeText) {
  EXPECT_EQ(parse_number<int64_t>("64"), 64);
  EXPECT_EQ(parse_number<int64_t>("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(parse_number<double>("1e+3"), 1000.0);
  EXPECT_EQ(parse_number<float>("0.25"), 0.25F);
  EXPECT_TRUE(std::isinf(parse_number<double>("inf").value_or(0.0)));
  EXPECT_EQ(parse_number<int>(std::string_view("123").substr(0, 2)), 12);
  for (const char* text : {"", "+64", " 64", "64 ", "64x", "0x40", "6,4", "--1", "-", "one"}) {
    EXPECT_FALSE(parse_number<int64_t>(text)) << text;
    EXPECT_FALSE(parse_number<double>(text)) << text;
  }
}

TEST(Text, NumberFitsItsType) {
  EXPECT_FALSE(parse_number<int64_t>("1.5"));
  EXPECT_FALSE(parse_number<int>("2147483648"));
  EXPECT_FALSE(parse_number<uint64_t>("-1"));
  EXPECT_FALSE(parse_number<float>("1e39"));
}

TEST(Text, SplitKeepsEmptyItems) {
  EXPECT_EQ(split_text("a,b", ','), (Items{"a", "b"}));
  EXPECT_EQ(split_text("a,,b,", ','), (Items{"a", "", "b", ""}));
  EXPECT_EQ(split_text("", ','), (Items{""}));
  EXPECT_EQ(split_text(",", ','), (Items{"", ""}));
  EXPECT_EQ(split_text("a/b,c", '/'), (Items{"a", "b,c"}));
}

}  // namespace
}  // namespace vitrine
