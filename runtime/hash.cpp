// SPDX-License-Identifier: Apache-2.0
#include "runtime/hash.h"

#include <xxhash.h>

namespace vitrine {

uint64_t hash_bytes(uint64_t seed, const void* bytes, int64_t count) { return XXH3_64bits_withSeed(bytes, static_cast<size_t>(count), seed); }

}  // namespace vitrine
