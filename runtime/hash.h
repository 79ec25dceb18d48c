// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325ULL;

/// Of bytes behind those that gave `hash`: to find out whether two copies differ, not against anybody who wants them to seem the same.
/// source  FNV-1a over words of 8 bytes, in four lanes that are mixed at the end
uint64_t hash_bytes(uint64_t hash, const void* bytes, int64_t count);

}  // namespace vitrine
