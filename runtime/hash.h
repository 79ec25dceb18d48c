// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace vitrine {

/// Returns the XXH3 hash of bytes[0, count). The result is the same on all machines, so ranks can compare hashes
/// instead of data. To hash data in parts, pass the hash of the previous part as `seed`. Not cryptographic: it finds
/// accidental differences, not deliberate ones.
uint64_t hash_bytes(uint64_t seed, const void* bytes, int64_t count);

/// Combines the hash `seed` with a number by one step of SplitMix64, which takes a few cycles; XXH3 takes nearly twice
/// as long for so few bytes. Start with seed 0, not with a number: seed and number are added. The result is the same on
/// all machines. source  Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014
constexpr uint64_t hash_number(uint64_t seed, uint64_t number) {
  uint64_t hash = seed + number + 0x9e3779b97f4a7c15U;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9U;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebU;
  return hash ^ (hash >> 31);
}

/// The XXH3 hash of bytes that arrive in parts: hash_bytes(0, ...) of all of them, whatever the parts are (and what
/// `xxhsum -H3` prints for a file).
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  StreamingHash(const StreamingHash&) = delete;
  StreamingHash& operator=(const StreamingHash&) = delete;

  void add(std::span<const std::byte> bytes);
  /// The hash of all bytes so far.
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
