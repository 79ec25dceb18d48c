// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace vitrine {

/// Returns the XXH3 hash of bytes[0, count). The result is the same on all machines, so ranks can compare hashes instead of data. To hash data in
/// parts, pass the hash of the previous part as `seed`. Not cryptographic: it finds accidental differences, not deliberate ones.
uint64_t hash_bytes(uint64_t seed, const void* bytes, int64_t count);

/// The XXH3 hash of bytes that arrive in parts: hash_bytes(0, ...) of all of them, whatever the parts are (and what `xxhsum -H3` prints for a file).
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
