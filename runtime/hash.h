// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// Returns the XXH3 hash of bytes[0, count). The result is the same on all machines, so ranks can compare hashes instead of data. To hash data in
/// parts, pass the hash of the previous part as `seed`. Not cryptographic: it finds accidental differences, not deliberate ones.
uint64_t hash_bytes(uint64_t seed, const void* bytes, int64_t count);

}  // namespace vitrine
