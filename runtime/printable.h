// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace vitrine {

/// Longer texts are cut: what follows is counted, not shown.
inline constexpr size_t kLongestPrintable = 16384;

/// Text from outside as it may be shown on a terminal: control characters (\x1b, and C1 in UTF-8), characters that reorder text (U+202E and its like)
/// and bytes that are not UTF-8 become \x1b, \u202e, \xff.
std::string printable(std::string_view text);
/// The same, but line breaks stay.
std::string printable_lines(std::string_view text);

}  // namespace vitrine
