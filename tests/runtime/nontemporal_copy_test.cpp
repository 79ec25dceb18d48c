// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/nontemporal_copy.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace vitrine::cpu {
namespace {

TEST(NontemporalCopy, CopiesAnyNumberOfBytesFromAnyAddressAndNoMore) {
  constexpr int64_t kMost = 300;
  std::vector<std::byte> from(kMost + 64);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251 + 1);
  for (int64_t bytes = 0; bytes <= kMost; ++bytes) {
    for (const int64_t shift : {0, 1, 16, 63}) {
      alignas(16) std::array<std::byte, kMost + 1> to{};
      nontemporal_copy(to.data(), from.data() + shift, bytes);
      for (int64_t i = 0; i <= kMost; ++i)
        ASSERT_EQ(to[static_cast<size_t>(i)], i < bytes ? from[static_cast<size_t>(i + shift)] : std::byte{0})
            << bytes << " bytes from " << shift << ", at " << i;
    }
  }
}

}  // namespace
}  // namespace vitrine::cpu
