// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// Current time in nanoseconds on the host's steady clock, which spans use too.
int64_t steady_now_ns();

}  // namespace vitrine
