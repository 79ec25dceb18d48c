// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace vitrine {

/// Text of files that another program, or an attacker, may have written: JSON parsers take memory in proportion to the
/// text, 16 bytes for two of an array of numbers, and stack in proportion to its nesting. Private to nn and tools.
inline constexpr int64_t kLargestJson = int64_t{16} << 20;
/// Of files that are read by lines, or by a reader of our own.
inline constexpr int64_t kLargestTextFile = int64_t{1} << 30;

/// Whether a line may be parsed: it has at most kLargestJson bytes, and arrays and objects are nested at most 64 deep.
bool is_small_json(std::string_view line);
/// Checks a text before it is parsed. throws DataError for a file of another kind, such as a Git LFS pointer, and
/// "SOURCE: it is nested deeper than 64 levels".
void check_json_text(const std::string& source, std::string_view text);

/// What is wrong with a text, from an exception of the JSON library: "line 2, column 23: found ',', expected a
/// string in double quotes". Parts of the text are made printable.
std::string describe_json_error(const std::exception& error);

}  // namespace vitrine
