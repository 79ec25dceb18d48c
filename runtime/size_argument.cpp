// SPDX-License-Identifier: Apache-2.0
#include "runtime/size_argument.h"

#include <array>

#include <fmt/format.h>

namespace vitrine {

std::string size_argument(int64_t bytes) {
  // At least two digits, so that rounding up adds little.
  constexpr int64_t kFew = 10;
  constexpr std::array<const char*, 4> names{"KiB", "MiB", "GiB", "TiB"};
  int64_t unit = 1024;
  size_t name = 0;
  while (name + 1 < names.size() && bytes / 1024 >= kFew * unit) {
    unit *= 1024;
    ++name;
  }
  return fmt::format("{}{}", bytes / unit + (bytes % unit > 0 ? 1 : 0), names[name]);
}

}  // namespace vitrine
