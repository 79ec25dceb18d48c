// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include "runtime/half.h"

/// The conversions of runtime/half.h for single numbers and for kLanes of them, for loops that compute between them.
/// The bits are the same.
namespace vitrine::cpu {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int64_t kLanes = 16;
#else
constexpr int64_t kLanes = 8;
#endif
using FloatLanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using BitLanes = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
using HalfLanes = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t))));

/// Calls f(0), ..., f(kCount - 1). GCC keeps an array of lanes in registers so; in loops it keeps the array in memory
/// and copies it in parts, which takes up to four times as long.
template <size_t kCount, class F>
inline void for_each_lane(const F& f) {
  [&]<size_t... k>(std::index_sequence<k...>) { (f(k), ...); }
  (std::make_index_sequence<kCount>());
}

/// The conversions in integer arithmetic, for one number (Bits is uint32_t, Floats float) or for lanes (BitLanes,
/// FloatLanes). The 16 bits are the lower ones of `half`. Lanes are passed by reference, because how they are passed by
/// value depends on the instruction set.
namespace bits {

template <class Bits, class Floats>
void widen(Half, const Bits& half, Floats& wide) {
  const Bits magnitude = (half & 0x7FFFU) << 13;
  const Bits exponent = magnitude & 0x0F800000U;
  const Bits finite = magnitude + (112U << 23);
  const Bits not_finite = magnitude + (224U << 23);
  const Bits nan = not_finite | 0x00400000U;
  // A denormal's value is its bits added to the smallest normal number.
  const Floats smallest = __builtin_bit_cast(Floats, Bits{} + (113U << 23));
  const Bits denormal =
      __builtin_bit_cast(Bits, Floats(__builtin_bit_cast(Floats, Bits(magnitude + (113U << 23))) - smallest));
  const Bits upper = magnitude > 0x0F800000U ? nan : not_finite;
  const Bits normal = exponent == 0x0F800000U ? upper : finite;
  const Bits result = (exponent == 0U ? denormal : normal) | ((half & 0x8000U) << 16);
  wide = __builtin_bit_cast(Floats, result);
}

template <class Bits, class Floats>
void narrow(Half, const Floats& wide, Bits& half) {
  const Bits all = __builtin_bit_cast(Bits, wide);
  const Bits magnitude = all & 0x7FFFFFFFU;
  const Bits normal = (magnitude - (112U << 23) + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
  // The last digit of numbers from 0.5 to 1 is the smallest denormal, so adding 0.5 rounds there.
  const Floats half_up = __builtin_bit_cast(Floats, Bits{} + (126U << 23));
  const Bits denormal =
      __builtin_bit_cast(Bits, Floats(__builtin_bit_cast(Floats, magnitude) + half_up)) - (126U << 23);
  const Bits nan = 0x7E00U | ((magnitude >> 13) & 0x03FFU);
  const Bits infinity = Bits{} + 0x7C00U;
  const Bits finite = magnitude < (113U << 23) ? denormal : normal;
  const Bits number = magnitude >= (143U << 23) ? infinity : finite;
  half = (wide != wide ? nan : number) | ((all >> 16) & 0x8000U);
}

template <class Bits, class Floats>
void widen(BFloat16, const Bits& half, Floats& wide) {
  const Bits all = half << 16;
  wide = __builtin_bit_cast(Floats, all);
}

template <class Bits, class Floats>
void narrow(BFloat16, const Floats& wide, Bits& half) {
  const Bits all = __builtin_bit_cast(Bits, wide);
  const Bits nan = (all >> 16) | 0x0040U;
  const Bits number = (all + 0x7FFFU + ((all >> 16) & 1U)) >> 16;
  half = wide != wide ? nan : number;
}

}  // namespace bits

template <class T>
float to_float(T value) {
  float wide;
  bits::widen(T{}, uint32_t{value.bits}, wide);
  return wide;
}
inline float to_float(float value) { return value; }

/// from_float<Half>(x), from_float<BFloat16>(x), from_float<float>(x).
template <class T>
T from_float(float value) {
  uint32_t narrow;
  bits::narrow(T{}, value, narrow);
  return T{static_cast<uint16_t>(narrow)};
}
template <>
inline float from_float<float>(float value) {
  return value;
}

#ifdef __F16C__
template <>
inline float to_float(Half value) {
  return _cvtsh_ss(value.bits);
}
template <>
inline Half from_float<Half>(float value) {
  return Half{_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)};
}
#endif

/// As many consecutive numbers as the variable holds, at any address.
template <class T>
void load(const T* from, float& to) {
  to = to_float(*from);
}
template <class T>
void store(float from, T* to) {
  *to = from_float<T>(from);
}
template <class T>
void load(const T* from, FloatLanes& to) {
#ifdef __AVX512BW__
  bits::widen(
      T{},
      reinterpret_cast<BitLanes>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))),
      to);
#elif defined(__AVX2__)
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  bits::widen(T{}, reinterpret_cast<BitLanes>(_mm256_cvtepu16_epi32(narrow)), to);
#else
  HalfLanes narrow;
  std::memcpy(&narrow, from, sizeof narrow);
  bits::widen(T{}, __builtin_convertvector(narrow, BitLanes), to);
#endif
}
template <class T>
void store(const FloatLanes& from, T* to) {
  BitLanes wide;
  bits::narrow(T{}, from, wide);
#ifdef __AVX512BW__
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(wide)));
#elif defined(__AVX2__)
  const auto all = reinterpret_cast<__m256i>(wide);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
#else
  const HalfLanes narrow = __builtin_convertvector(wide, HalfLanes);
  std::memcpy(to, &narrow, sizeof narrow);
#endif
}
inline void load(const float* from, FloatLanes& to) { std::memcpy(&to, from, sizeof to); }
inline void store(const FloatLanes& from, float* to) { std::memcpy(to, &from, sizeof from); }

#ifdef __AVX512BW__
inline void load(const Half* from, FloatLanes& to) {
  to = reinterpret_cast<FloatLanes>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
inline void store(const FloatLanes& from, Half* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(reinterpret_cast<__m512>(from), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__F16C__)
inline void load(const Half* from, FloatLanes& to) {
  to = reinterpret_cast<FloatLanes>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline void store(const FloatLanes& from, Half* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(reinterpret_cast<__m256>(from), _MM_FROUND_TO_NEAREST_INT));
}
#endif

}  // namespace vitrine::cpu
