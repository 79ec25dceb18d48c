// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace vitrine {

/// Calls body(begin, end) on consecutive parts of [0, count), one for each thread of the CPU device's team, and returns when all are done. Parts are
/// multiples of `grain` but for the last, and the same in every call with the same arguments; work of at most one grain stays on the calling thread.
/// For functions that ExecContext::dispatch runs on a CPU device, whose thread count it uses; on other threads OpenMP's. Calls do not nest: a body
/// that calls it runs on one thread.
/// throws  ConfigError when grain < 1; what body throws, of the lowest part that did, after all parts have ended
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

/// Threads that parallel_for uses when it is called here; 1 in a build without OpenMP.
int team_size();

}  // namespace vitrine
