// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vitrine {

/// Parses a size in bytes: "512MiB", "1.5GiB", "64K" (as 64KiB), "2GB" (powers of 1000), "4096" (bytes).
/// throws ConfigError if `text` is not a size, is negative or does not fit.
int64_t parse_bytes(std::string_view text);

/// Formats bytes for people: "512.0 MiB", "3.2 GiB", "768 B".
std::string format_bytes(int64_t bytes);

/// Formats a size of at least `bytes` as options accept it: "7KiB", "512MiB". requires bytes >= 0
std::string size_argument(int64_t bytes);
/// Formats seconds for people: "1.234 s", "56.7 ms", "8.9 us".
std::string format_seconds(double seconds);

}  // namespace vitrine
