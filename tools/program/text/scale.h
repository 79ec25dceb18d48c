// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vitrine::tools::html {

/// The positions of an axis's lines: about `count` multiples of a round step from 0, the last at or above `largest`.
std::vector<double> ticks(double largest, int count = 4);
/// The same for bytes: steps are powers of two.
std::vector<int64_t> byte_ticks(int64_t largest, int count = 4);

/// "512 MiB", "1.5 GiB": format_bytes() without a fraction of zero.
std::string short_bytes(int64_t bytes);
/// Milliseconds, or a better unit: "12.3 ms", "45 us", "1.2 s".
std::string short_seconds(double seconds);
/// A number for people: "65,536", "123", "12.3", "1.23", "0.10", "0.0021".
std::string short_number(double value);
/// "12 %", "0.4 %".
std::string percent(double share);

}  // namespace vitrine::tools::html
