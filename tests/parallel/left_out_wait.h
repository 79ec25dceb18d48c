// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/parallel/random_model.h"

namespace vitrine::test {

/// Trains three steps on two devices of `backend` under `mode`, and omits one wait of the third. Returns true when the
/// order checker finds it.
///   muted  the checker reports nothing, so that ThreadSanitizer can
bool finds_left_out_wait(Backend backend, const char* mode, int64_t wait, bool muted);

/// Number of waits in that third step.
int64_t waits_of_a_step(const char* mode);

}  // namespace vitrine::test
