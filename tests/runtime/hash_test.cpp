// SPDX-License-Identifier: Apache-2.0
#include "runtime/hash.h"

#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace vitrine {
namespace {

uint64_t hash(uint64_t seed, std::string_view text) { return hash_bytes(seed, text.data(), static_cast<int64_t>(text.size())); }

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

}  // namespace
}  // namespace vitrine
