// SPDX-License-Identifier: Apache-2.0
#include "runtime/text.h"

#include <algorithm>

#include <fmt/format.h>

namespace vitrine {

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    items.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

std::string describe_ranks(std::span<const int> ranks) {
  constexpr int kMostRuns = 8;
  std::string text;
  int runs = 0;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin < 3) end = begin + 1;
    if (++runs > kMostRuns) {
      text += fmt::format(", ... ({} ranks)", ranks.size());
      break;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[begin]);
    if (end - begin > 1) text += fmt::format(" to {}", ranks[end - 1]);
    begin = end;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", text);
}

}  // namespace vitrine
