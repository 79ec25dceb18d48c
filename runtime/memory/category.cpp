// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/category.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "runtime/units.h"

namespace vitrine {

const char* category_name(Category category) {
  static constexpr const char* kNames[kCategoryCount] = {"parameters",  "gradients",     "optimizer",
                                                         "activations", "workspace",     "staging",
                                                         "dataset",     "communication", "fragmentation"};
  return kNames[static_cast<int>(category)];
}

int64_t allocated_bytes(const BytesByCategory& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) - bytes[static_cast<size_t>(Category::fragmentation)];
}

std::string describe_by_size(const BytesByCategory& bytes) {
  std::array<size_t, kCategoryCount> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::string text;
  for (const size_t c : order) {
    if (bytes[c] == 0) break;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", category_name(static_cast<Category>(c)),
                        format_bytes(bytes[c]));
  }
  return text;
}

}  // namespace vitrine
