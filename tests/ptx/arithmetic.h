// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include <immintrin.h>

#include "tests/ptx/findings.h"

/// Instructions that compute in registers: for the lanes of a mask `m`, 32 values of a register lie side by side.
namespace vitrine::ptx {

#define LANES(body)                                             \
  if (m == kAll) {                                              \
    _Pragma("GCC ivdep") for (int l = 0; l < 32; ++l) { body; } \
  } else {                                                      \
    for (uint32_t r = m; r != 0; r &= r - 1) {                  \
      const int l = __builtin_ctz(r);                           \
      body;                                                     \
    }                                                           \
  }

template <class D, class A, auto F>
void unary(Ctx& c, const Inst& i, uint32_t m) {
  D* const d = at<D>(c, i.d);
  const A* const a = at<A>(c, i.a);
  LANES(d[l] = F(a[l]))
}
template <class D, class A, class B, auto F>
void binary(Ctx& c, const Inst& i, uint32_t m) {
  D* const d = at<D>(c, i.d);
  const A* const a = at<A>(c, i.a);
  const B* const b = at<B>(c, i.b);
  LANES(d[l] = F(a[l], b[l]))
}
template <class D, class A, class C, auto F>
void ternary(Ctx& c, const Inst& i, uint32_t m) {
  D* const d = at<D>(c, i.d);
  const A* const a = at<A>(c, i.a);
  const A* const b = at<A>(c, i.b);
  const C* const e = at<C>(c, i.c);
  LANES(d[l] = F(a[l], b[l], e[l]))
}
template <class T, auto F>
void compare(Ctx& c, const Inst& i, uint32_t m) {
  const T* const a = at<T>(c, i.a);
  const T* const b = at<T>(c, i.b);
  uint32_t bits = 0;
  for (int l = 0; l < 32; ++l) bits |= static_cast<uint32_t>(F(a[l], b[l])) << l;
  uint32_t& d = *at<uint32_t>(c, i.d);
  d = (d & ~m) | (bits & m);
}
template <auto F>
void predicates(Ctx& c, const Inst& i, uint32_t m) {
  const uint32_t bits = F(*at<uint32_t>(c, i.a), i.b == kNone ? 0 : *at<uint32_t>(c, i.b));
  uint32_t& d = *at<uint32_t>(c, i.d);
  d = (d & ~m) | (bits & m);
}
template <class T>
void select(Ctx& c, const Inst& i, uint32_t m) {
  T* const d = at<T>(c, i.d);
  const T* const a = at<T>(c, i.a);
  const T* const b = at<T>(c, i.b);
  const uint32_t p = *at<uint32_t>(c, i.c);
  LANES(d[l] = (p >> l & 1U) != 0 ? a[l] : b[l])
}

// Division by zero and overflow have no defined result: they are reported.
template <class T, bool kRemainder>
void divide(Ctx& c, const Inst& i, uint32_t m) {
  T* const d = at<T>(c, i.d);
  const T* const a = at<T>(c, i.a);
  const T* const b = at<T>(c, i.b);
  for (uint32_t r = m; r != 0; r &= r - 1) {
    const int l = __builtin_ctz(r);
    if (b[l] == 0) {
      report(c, &i, l, 0, "division by zero");
      d[l] = static_cast<T>(-1);
    } else if (std::is_signed_v<T> && b[l] == static_cast<T>(-1)) {
      d[l] = kRemainder ? T{0} : static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a[l]));
    } else {
      d[l] = kRemainder ? a[l] % b[l] : a[l] / b[l];
    }
  }
}

template <class T>
T flush(T x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T{0}, x) : x;
}
// With VITRINE_PTX_APPROXIMATE=1, results of approximate functions are off by up to two units in the last place, as
// those of a GPU may be.
inline float approximate(float x, bool exact) {
  if (!settings().approximate || exact || !std::isnormal(x)) return x;
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>(bits + (bits * 2654435761U >> 16) % 5 - 2);
}
inline float largest(float a, float b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}
inline float smallest(float a, float b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
}
inline double largest(double a, double b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}
inline double smallest(double a, double b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
}

inline void fma_down(Ctx& c, const Inst& i, uint32_t m) {  // fma.rm.f32
  float* const d = at<float>(c, i.d);
  const float *const a = at<float>(c, i.a), *const b = at<float>(c, i.b), *const e = at<float>(c, i.c);
  uint32_t usual = 0, down = 0;
  asm volatile("stmxcsr %0" : "=m"(usual));
  down = (usual & ~0x6000U) | 0x2000U;
  asm volatile("ldmxcsr %0" : : "m"(down));
  for (uint32_t r = m; r != 0; r &= r - 1) {
    const int l = __builtin_ctz(r);
    float sum = e[l];
    asm volatile("vfmadd231ss %2, %1, %0" : "+x"(sum) : "x"(a[l]), "x"(b[l]));
    d[l] = sum;
  }
  asm volatile("ldmxcsr %0" : : "m"(usual));
}

inline float from_half(uint16_t h) { return _cvtsh_ss(h); }
inline uint16_t to_half(float f) { return static_cast<uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT)); }
inline float from_bf16(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }
inline uint16_t to_bf16(float f) {
  if (std::isnan(f)) return 0x7FFF;
  const auto u = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((u + 0x7FFFU + (u >> 16 & 1U)) >> 16);
}
// cvt.r?i: clamps; NaN becomes 0, or the smallest number where one side has 64 bits.
template <class I, class F>
I to_integer(F value) {
  if (std::isnan(value)) {
    if (sizeof(I) < 8 && sizeof(F) < 8) return 0;
    return static_cast<I>(std::make_unsigned_t<I>{1} << (sizeof(I) * 8 - 1));
  }
  const F limit = std::ldexp(F{1}, static_cast<int>(sizeof(I)) * 8 - (std::is_signed_v<I> ? 1 : 0));
  if (value >= limit) return std::numeric_limits<I>::max();
  if (value < (std::is_signed_v<I> ? -limit : F{0})) return std::numeric_limits<I>::min();
  return static_cast<I>(value);
}

inline void prmt(Ctx& c, const Inst& i, uint32_t m) {
  uint32_t* const d = at<uint32_t>(c, i.d);
  const uint32_t *const a = at<uint32_t>(c, i.a), *const b = at<uint32_t>(c, i.b), *const s = at<uint32_t>(c, i.c);
  LANES({
    const uint64_t both = static_cast<uint64_t>(b[l]) << 32 | a[l];
    uint32_t out = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t choice = s[l] >> (4 * k) & 15U;
      uint32_t byte = static_cast<uint32_t>(both >> (8 * (choice & 7U))) & 255U;
      if ((choice & 8U) != 0) byte = (byte & 128U) != 0 ? 255U : 0U;
      out |= byte << (8 * k);
    }
    d[l] = out;
  })
}

inline void pack(Ctx& c, const Inst& i, uint32_t m) {  // mov.b32 d, {v0, v1}
  if (i.base_bytes == 4) {
    const auto *const low = at<uint16_t>(c, i.v[0]), *const high = at<uint16_t>(c, i.v[1]);
    auto* const d = at<uint32_t>(c, i.d);
    LANES(d[l] = static_cast<uint32_t>(high[l]) << 16 | low[l])
  } else {
    const auto *const low = at<uint32_t>(c, i.v[0]), *const high = at<uint32_t>(c, i.v[1]);
    auto* const d = at<uint64_t>(c, i.d);
    LANES(d[l] = static_cast<uint64_t>(high[l]) << 32 | low[l])
  }
}
inline void unpack(Ctx& c, const Inst& i, uint32_t m) {  // mov.b32 {v0, v1}, a
  if (i.base_bytes == 4) {
    auto *const low = at<uint16_t>(c, i.v[0]), *const high = at<uint16_t>(c, i.v[1]);
    uint32_t a[32];
    std::memcpy(a, at<uint32_t>(c, i.a), sizeof a);
    LANES(low[l] = static_cast<uint16_t>(a[l]); high[l] = static_cast<uint16_t>(a[l] >> 16))
  } else {
    auto *const low = at<uint32_t>(c, i.v[0]), *const high = at<uint32_t>(c, i.v[1]);
    uint64_t a[32];
    std::memcpy(a, at<uint64_t>(c, i.a), sizeof a);
    LANES(low[l] = static_cast<uint32_t>(a[l]); high[l] = static_cast<uint32_t>(a[l] >> 32))
  }
}
inline void nothing(Ctx&, const Inst&, uint32_t) {}
inline void grid_wait(Ctx& c, const Inst&, uint32_t m) { c.warp->waited |= m; }

}  // namespace vitrine::ptx
