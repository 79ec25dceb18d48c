// SPDX-License-Identifier: Apache-2.0
#include "runtime/clock.h"

#include <chrono>

namespace vitrine {

int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace vitrine
