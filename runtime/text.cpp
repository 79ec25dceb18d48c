// SPDX-License-Identifier: Apache-2.0
#include "runtime/text.h"

#include <algorithm>

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

}  // namespace vitrine
