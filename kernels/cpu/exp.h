// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/storage.h"

namespace vitrine::cpu {

/// y = e^x within two units in the last place. Results below 2^-125 are 0. y may be x.
inline void exp(const FloatLanes& x, FloatLanes& y) {
  constexpr float kLeast = -87.3F, kMost = 88.72F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const FloatLanes zeros{};
  const FloatLanes low = x < kLeast ? zeros + kLeast : x;
  const FloatLanes bounded = low > kMost ? zeros + kMost : low;
  const FloatLanes shifted = bounded * 1.44269504F + kRound;  // log2(e)
  const FloatLanes power = shifted - kRound;
  const FloatLanes rest =
      (bounded - power * 0.693359375F) + power * 2.12194440e-4F;  // minus power * ln(2), in two parts
  FloatLanes sum = rest * 1.9875691500e-4F + 1.3981999507e-3F;    // Cephes' expf
  sum = sum * rest + 8.3334519073e-3F;
  sum = sum * rest + 4.1665795894e-2F;
  sum = sum * rest + 1.6666665459e-1F;
  sum = sum * rest + 5.0000001201e-1F;
  sum = sum * rest * rest + rest + 1.0F;
  // 2^(power - 1), and twice the sum: 2^128 would be infinite.
  const BitLanes exponent =
      __builtin_bit_cast(BitLanes, shifted) - __builtin_bit_cast(uint32_t, kRound) + uint32_t{126};
  const FloatLanes scale = __builtin_bit_cast(FloatLanes, BitLanes(exponent << 23));
  const FloatLanes result = (sum + sum) * scale;
  const FloatLanes finite = x > kMost ? zeros + __builtin_inff() : result;
  y = x != x ? x : finite;
}
inline void exp(float x, float& y) {
  FloatLanes lanes = FloatLanes{} + x;
  exp(lanes, lanes);
  y = lanes[0];
}

}  // namespace vitrine::cpu
