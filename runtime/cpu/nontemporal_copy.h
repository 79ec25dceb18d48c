// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace vitrine::cpu {

/// Copies to memory that another core read last and will read next. Ordinary stores first fetch each line from that
/// core's cache, which takes eight times as long where cores have no L3 cache in common; these write past the caches.
/// They are visible to others after a later release store.
///   to  aligned to 16 bytes
inline void nontemporal_copy(std::byte* to, const std::byte* from, int64_t bytes) {
  int64_t at = 0;
#if defined(__SSE2__)
  constexpr int64_t kStore = sizeof(__m128i), kLine = 4 * kStore;
  for (; at + kLine <= bytes; at += kLine) {
    for (int64_t i = at; i < at + kLine; i += kStore)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();  // a release store does not wait for them
#endif
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}

}  // namespace vitrine::cpu
