// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

/// What tests count in printed text.
namespace vitrine {

/// How often `part` occurs, without overlaps.
inline size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

/// Bytes of the longest line.
inline size_t longest_line(const std::string& text) {
  size_t longest = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  return longest;
}

}  // namespace vitrine
