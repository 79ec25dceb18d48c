// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::test {

/// Step between the seeds of tests on random models, and between alignments of operations. Sanitizers are slow, so a
/// part runs under them; data races do not even depend on the model.
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kSeedStep = 7;
#elif defined(__SANITIZE_ADDRESS__)
constexpr unsigned kSeedStep = 5;
#else
constexpr unsigned kSeedStep = 1;
#endif

}  // namespace vitrine::test
