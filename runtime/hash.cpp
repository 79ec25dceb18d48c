// SPDX-License-Identifier: Apache-2.0
#include "runtime/hash.h"

#include <cstddef>
#include <cstring>

namespace vitrine {

uint64_t hash_bytes(uint64_t hash, const void* memory, int64_t count) {
  const auto* const bytes = static_cast<const std::byte*>(memory);
  constexpr uint64_t kPrime = 0x100000001b3ULL;
  constexpr int64_t kLanes = 4, kWord = 8;
  uint64_t lanes[kLanes] = {hash, hash ^ 1, hash ^ 2, hash ^ 3};
  int64_t at = 0;
  for (; at + kLanes * kWord <= count; at += kLanes * kWord) {
    for (int64_t l = 0; l < kLanes; ++l) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at + l * kWord, kWord);
      lanes[l] = (lanes[l] ^ word) * kPrime;
      lanes[l] ^= lanes[l] >> 32;
    }
  }
  for (; at < count; ++at) lanes[0] = (lanes[0] ^ static_cast<uint64_t>(bytes[at])) * kPrime;
  for (int64_t l = 1; l < kLanes; ++l) lanes[0] = (lanes[0] ^ lanes[l]) * kPrime;
  return lanes[0] ^ (lanes[0] >> 29);
}

}  // namespace vitrine
