// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::test {

/// Step between the seeds of tests on random models. Under ThreadSanitizer a fifth of them run: it is slow, and data races do not depend on the
/// model.
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kSeedStep = 5;
#else
constexpr unsigned kSeedStep = 1;
#endif

}  // namespace vitrine::test
