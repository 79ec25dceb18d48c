// SPDX-License-Identifier: Apache-2.0
#include "runtime/units.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

TEST(Units, ParsesSizes) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("768B"), 768);
  EXPECT_EQ(parse_bytes("64KiB"), 64 << 10);
  EXPECT_EQ(parse_bytes("512MiB"), 512 << 20);
  EXPECT_EQ(parse_bytes("512 mib"), 512 << 20);
  EXPECT_EQ(parse_bytes("1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("8G"), int64_t{8} << 30);
  EXPECT_EQ(parse_bytes("64k"), 64 << 10);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("0.25kB"), 250);
  EXPECT_EQ(parse_bytes("9223372036854775807"), INT64_MAX);
}

TEST(Units, RejectsInvalidSizes) {
  for (const char* text : {"", "-1", "-4KiB", "MiB", "5P", "5 X", "1.5", "1.", ".5GiB", "1.5.2GiB", "1e3", "0x10", " 5",
                           "5 ", "nan", "9223372036854775808", "9000000TiB", "8388607.99999999999999999TiB"}) {
    EXPECT_THROW(parse_bytes(text), ConfigError) << text;
  }
}

TEST(Units, PrintsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(768), "768 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(512 << 20), "512.0 MiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(-2048), "-2.0 KiB");
  EXPECT_EQ(format_bytes(INT64_MAX), "8388608.0 TiB");
}

TEST(Units, SizeArgumentsParseToAtLeastTheirBytes) {
  EXPECT_EQ(size_argument(6963), "7KiB");
  EXPECT_EQ(size_argument(0), "0KiB");
  EXPECT_EQ(size_argument(8 << 20), "8192KiB");
  EXPECT_EQ(size_argument(64 << 20), "64MiB");
  EXPECT_EQ(size_argument((int64_t{12} << 30) + 1), "13GiB");
  for (int64_t bytes = 1; bytes < INT64_MAX / 3; bytes = 3 * bytes + 1) {
    const int64_t read = parse_bytes(size_argument(bytes));
    EXPECT_GE(read, bytes);
    EXPECT_LE(read - bytes, std::max<int64_t>(1023, bytes / 10)) << bytes;
  }
}

TEST(Units, PrintsSeconds) {
  EXPECT_EQ(format_seconds(1.2341), "1.234 s");
  EXPECT_EQ(format_seconds(0.0567), "56.7 ms");
  EXPECT_EQ(format_seconds(8.9e-6), "8.9 us");
  EXPECT_EQ(format_seconds(0.99999), "1.000 s");
  EXPECT_EQ(format_seconds(0), "0.0 us");
}

}  // namespace
}  // namespace vitrine
