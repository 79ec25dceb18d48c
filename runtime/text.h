// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <optional>
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

}  // namespace vitrine
