// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <bit>
#include <cstring>

#include "tests/ptx/findings.h"

/// Instructions that access memory, each access checked.
namespace vitrine::ptx {

enum class Space { global, shared, param, local };

/// The addresses of the lanes.
void addresses(Ctx& c, const Inst& i, uint64_t (&to)[32]);
/// Whether the lane may access [p, p + bytes); `what` is read or write.
bool may_access(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes, const char* what);
bool may_access_shared(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes, const char* what);
/// Null, with a report, if the access is out of bounds.
std::byte* local_memory(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes);
void shuffle(Ctx& c, const Inst& i, uint32_t m);

// races.cpp
void check_shared_read(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes);
void check_shared_write(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes);
void check_global(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes, bool writes, bool same_value);

// M: type in memory, D: that of the register.
template <class M, class D, Space kSpace>
void load(Ctx& c, const Inst& i, uint32_t m) {
  const uint32_t bytes = sizeof(M) * i.count;
  if constexpr (kSpace == Space::param) {
    uint64_t p[32];
    addresses(c, i, p);
    for (uint32_t r = m; r != 0; r &= r - 1) {
      const int l = __builtin_ctz(r);
      if (p[l] % bytes != 0 || p[l] + bytes > c.launch->param_bytes) {
        report(c, &i, l, kIllegalAddress, "illegal read of a parameter: %u bytes at %#lx of %zu", bytes, p[l],
               c.launch->param_bytes);
        continue;
      }
      for (uint32_t k = 0; k < i.count; ++k) {
        M value;
        std::memcpy(&value, static_cast<const std::byte*>(c.launch->params) + p[l] + k * sizeof(M), sizeof(M));
        if (i.v[k] != kNone) at<D>(c, i.v[k])[l] = static_cast<D>(value);
      }
    }
    return;
  }
  uint64_t p[32];
  addresses(c, i, p);
  for (uint32_t r = m; r != 0; r &= r - 1) {
    const int l = __builtin_ctz(r);
    const std::byte* from = nullptr;
    if constexpr (kSpace == Space::global) {
      if (!may_access(c, i, l, p[l], bytes, "read")) continue;
      if (c.global != nullptr) check_global(c, i, l, p[l], bytes, false, false);
      from = reinterpret_cast<const std::byte*>(p[l]);
    } else if constexpr (kSpace == Space::local) {
      from = local_memory(c, i, l, p[l], bytes);
      if (from == nullptr) continue;
    } else {
      if (!may_access_shared(c, i, l, p[l], bytes, "read")) continue;
      if (settings().races) check_shared_read(c, i, l, p[l], bytes);
      from = c.block->shared.data() + p[l];
    }
    for (uint32_t k = 0; k < i.count; ++k) {
      M value;
      std::memcpy(&value, from + k * sizeof(M), sizeof(M));
      if (i.v[k] != kNone) at<D>(c, i.v[k])[l] = static_cast<D>(value);
    }
  }
}

template <class M, class S, Space kSpace>
void store(Ctx& c, const Inst& i, uint32_t m) {
  const uint32_t bytes = sizeof(M) * i.count;
  uint64_t p[32];
  addresses(c, i, p);
  for (uint32_t r = m; r != 0; r &= r - 1) {
    const int l = __builtin_ctz(r);
    std::byte* to = nullptr;
    if constexpr (kSpace == Space::global) {
      if (!may_access(c, i, l, p[l], bytes, "write")) continue;
      if (c.global != nullptr) {
        bool same = true;
        for (uint32_t k = 0; k < i.count; ++k) {
          const M value = static_cast<M>(at<S>(c, i.v[k])[l]);
          same = same && std::memcmp(reinterpret_cast<const std::byte*>(p[l]) + k * sizeof(M), &value, sizeof(M)) == 0;
        }
        check_global(c, i, l, p[l], bytes, true, same);
      }
      to = reinterpret_cast<std::byte*>(p[l]);
    } else if constexpr (kSpace == Space::local) {
      to = local_memory(c, i, l, p[l], bytes);
      if (to == nullptr) continue;
    } else {
      if (!may_access_shared(c, i, l, p[l], bytes, "write")) continue;
      if (settings().races) check_shared_write(c, i, l, p[l], bytes);
      to = c.block->shared.data() + p[l];
    }
    for (uint32_t k = 0; k < i.count; ++k) {
      const M value = static_cast<M>(at<S>(c, i.v[k])[l]);
      std::memcpy(to + k * sizeof(M), &value, sizeof(M));
    }
  }
}

template <class T, auto F>  // F(old, b, c): the new value
void atomic(Ctx& c, const Inst& i, uint32_t m) {
  uint64_t p[32];
  addresses(c, i, p);
  for (uint32_t r = m; r != 0; r &= r - 1) {
    const int l = __builtin_ctz(r);
    if (!may_access(c, i, l, p[l], sizeof(T), "atomic operation")) continue;
    c.block_used_atomics = true;
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    const std::atomic_ref<Bits> word(*reinterpret_cast<Bits*>(p[l]));
    const T b = at<T>(c, i.b)[l], e = i.c == kNone ? T{} : at<T>(c, i.c)[l];
    Bits old = word.load();
    while (!word.compare_exchange_weak(old, std::bit_cast<Bits>(F(std::bit_cast<T>(old), b, e)))) continue;
    if (i.d != kNone) at<T>(c, i.d)[l] = std::bit_cast<T>(old);
  }
}

}  // namespace vitrine::ptx
