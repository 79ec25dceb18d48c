// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// Sums of squares of an f32 vector by tiles: tile i has elements [i * kSquareTile, (i + 1) * kSquareTile), the last
/// one may be shorter. They are kept in a view (square_tiles(n), 2) i32, each as the bits of an f64. Squares of finite
/// floats do not overflow an f64, so a sum is finite exactly if all elements of its tile are.
inline constexpr int64_t kSquareTile = 8192;
inline constexpr int64_t square_tiles(int64_t elements) { return (elements + kSquareTile - 1) / kSquareTile; }

}  // namespace vitrine
