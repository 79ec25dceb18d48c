// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace vitrine {

/// Calls body(begin, end) on consecutive parts of [0, count), one for each thread of the CPU device, and returns when
/// all are done. The parts are multiples of `grain` except for the last one, and the same in every call with the same
/// arguments. Work of at most one grain stays on the calling thread. For functions that ExecContext::dispatch runs on a
/// CPU device, whose thread count it uses; on other threads it uses OpenMP's. Calls do not nest: a body that calls it
/// runs on one thread.
/// throws  ConfigError if grain < 1; the exception of the lowest part that threw, after all parts have ended
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

/// Number of threads that parallel_for uses on the calling thread; 1 in a build without OpenMP.
int team_size();

}  // namespace vitrine
