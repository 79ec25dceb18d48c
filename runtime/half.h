// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Conversion of the 16-bit storage types f16 (IEEE 754 binary16) and bf16 (the upper half of an f32) from and to f32
/// on the host. Rounds to nearest, ties to even; keeps denormals; values beyond the largest number become infinity; NaN
/// stays NaN with its sign, quiet if it is rounded. `float` is the storage type f32 and stays unchanged.
namespace vitrine::cpu {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

/// T is float, Half or BFloat16; source and destination do not overlap.
template <class T>
void widen(const T* from, float* to, int64_t count);
template <class T>
void narrow(const float* from, T* to, int64_t count);

}  // namespace vitrine::cpu
