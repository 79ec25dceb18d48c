// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace vitrine {

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
