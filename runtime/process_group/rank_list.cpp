// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/rank_list.h"

#include <fmt/format.h>

namespace vitrine::process_group {

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

}  // namespace vitrine::process_group
