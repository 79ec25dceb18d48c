// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

/// Text that tests print, count and take apart.
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

/// The words of a command line. Each "{}" in them stands for the next of `values`, which may contain spaces.
template <class... Values>
std::vector<std::string> words(const std::string& text, const Values&... values) {
  const std::vector<std::string> all_values{std::string(values)...};
  std::vector<std::string> all;
  std::istringstream stream(text);
  size_t used = 0;
  for (std::string word; stream >> word; all.push_back(word)) {
    if (const size_t at = word.find("{}"); at != std::string::npos) word.replace(at, 2, all_values.at(used++));
  }
  return all;
}

}  // namespace vitrine
