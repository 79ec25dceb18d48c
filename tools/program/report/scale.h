// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vitrine::tools::html {

/// Where an axis has its lines: multiples of a round step from 0, `count` or a few more or less, the last at or above `largest`.
std::vector<double> ticks(double largest, int count = 4);
/// The same for bytes: steps are powers of two.
std::vector<int64_t> byte_ticks(int64_t largest, int count = 4);

/// "512 MiB", "1.5 GiB": as format_bytes(), without a fraction of nothing.
std::string short_bytes(int64_t bytes);
/// Milliseconds, or what suits better: "12.3 ms", "45 us", "1.2 s".
std::string short_seconds(double seconds);
/// "12 %", "0.4 %".
std::string percent(double share);

}  // namespace vitrine::tools::html
