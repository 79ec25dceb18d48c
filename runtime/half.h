// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The 16-bit storage types on the host: f16 (IEEE 754 binary16) and bf16 (the upper half of an f32), converted from and to f32: rounded to the
/// nearest, ties to even; denormals kept; beyond the largest number to infinity; NaN to NaN of the same sign, quiet when it is rounded. `float` goes
/// through unchanged, as the storage type f32.
namespace vitrine::cpu {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

/// T is float, Half or BFloat16; the two do not overlap.
template <class T>
void widen(const T* from, float* to, int64_t count);
template <class T>
void narrow(const float* from, T* to, int64_t count);

}  // namespace vitrine::cpu
