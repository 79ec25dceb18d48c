// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::test {

/// Step between the seeds of tests on random models. ThreadSanitizer gets a fifth of them: it is slow, and the races that it looks for do not depend
/// on the model.
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kSeedStep = 5;
#else
constexpr unsigned kSeedStep = 1;
#endif

}  // namespace vitrine::test
