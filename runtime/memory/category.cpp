// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/category.h"

namespace vitrine {

const char* category_name(Category category) {
  static constexpr const char* kNames[kCategoryCount] = {"parameters", "gradients",     "optimizer", "activations",  "workspace",
                                                         "staging",    "communication", "packed",    "fragmentation"};
  return kNames[static_cast<int>(category)];
}

}  // namespace vitrine
