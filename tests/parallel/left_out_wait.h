// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/parallel/random_model.h"

namespace vitrine::test {

/// Trains three steps on two devices of `backend` under `mode`, and leaves out one wait of the third. True when the order checker finds it.
/// muted: the checker says nothing (for ThreadSanitizer to find it).
bool finds_left_out_wait(Backend backend, const char* mode, int64_t wait, bool muted);

/// How many waits that third step has.
int64_t waits_of_a_step(const char* mode);

}  // namespace vitrine::test
