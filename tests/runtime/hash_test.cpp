// SPDX-License-Identifier: Apache-2.0
#include "runtime/hash.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace vitrine {
namespace {

uint64_t hash(uint64_t seed, std::string_view text) {
  return hash_bytes(seed, text.data(), static_cast<int64_t>(text.size()));
}

// Values of the reference implementation (xxHash 0.8): ranks on different machines compare hashes.
TEST(Hash, EqualsXxh3OnEveryMachine) {
  EXPECT_EQ(hash(0, ""), 0x2d06800538d394c2U);
  EXPECT_EQ(hash(0, "vitrine"), 0x184c4cb4af5fd5b7U);
  EXPECT_EQ(hash(1, "vitrine"), 0x2357f4031c4f3a88U);
  std::vector<unsigned char> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i % 251);
  EXPECT_EQ(hash_bytes(7, bytes.data(), 1000), 0x88c710a69b531698U);
}

TEST(Hash, OfPartsDependsOnTheirOrderAndContent) {
  EXPECT_NE(hash(hash(0, "a"), "b"), hash(hash(0, "b"), "a"));
  EXPECT_EQ(hash(hash(0, "a"), "b"), hash(hash(0, "a"), "b"));
  EXPECT_NE(hash(hash(0, "a"), "b"), hash(hash(0, "a"), "c"));
}

TEST(Hash, InPartsIsThatOfTheWhole) {
  std::vector<std::byte> bytes(100'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i % 253);
  const auto whole = hash_bytes(0, bytes.data(), static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(StreamingHash().value(), hash(0, ""));
  for (const size_t part : {size_t{1}, size_t{7}, size_t{4096}, bytes.size()}) {
    StreamingHash parts;
    for (size_t begin = 0; begin < bytes.size(); begin += part)
      parts.add(std::span(bytes).subspan(begin, std::min(part, bytes.size() - begin)));
    EXPECT_EQ(parts.value(), whole) << part;
  }
}

}  // namespace
}  // namespace vitrine
