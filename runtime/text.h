// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace vitrine {

/// The number that makes up the whole text, as std::from_chars reads it: no blanks, no leading '+', no unit.
/// Floating-point types also accept "nan" and "inf". Empty for any other text, and for a number that `Number` cannot
/// hold.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const std::from_chars_result read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return value;
}

/// The items between separators, one more than there are separators. Empty items stay: "a,,b," has four items and ""
/// has one.
std::vector<std::string> split_text(std::string_view text, char separator);

/// Formats ascending ranks for a message: "rank 3", "ranks 0, 1", "ranks 0 to 41, 43 to 255". Of more than eight runs,
/// names the first ones and the total number.
std::string describe_ranks(std::span<const int> ranks);

/// Longer texts are cut; the number of omitted bytes is shown instead.
inline constexpr size_t kLongestPrintable = 16384;

/// Makes text from outside safe to show on a terminal: escapes control characters (\x1b, and C1 in UTF-8), characters
/// that reorder text (U+202E and similar) and bytes that are not UTF-8 as \x1b, \u202e, \xff.
std::string printable(std::string_view text);
/// Like printable(), but keeps line breaks.
std::string printable_lines(std::string_view text);
/// Text from outside (a file, the environment, a flag) within a message: printable(), and the middle of long text is
/// omitted. most_bytes counts escaped text, without what is said about the omission.
std::string excerpt(std::string_view text, size_t most_bytes = 80);

}  // namespace vitrine
