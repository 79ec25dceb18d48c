// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>  // builds without OpenMP have cpu/no_openmp/omp.h

namespace vitrine::cpu {

/// Number of threads that parallel_for uses on the calling thread, a device's worker; 1 without OpenMP.
inline int team_size() { return omp_get_max_threads(); }

/// Calls body(begin, end) on consecutive parts of [0, count), one for each thread of the device, the same parts every
/// time. Parts are multiples of `grain` except for the last one. Work below one grain stays on the calling thread.
/// `body` must not throw.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t parts = std::min<int64_t>(team_size(), grains);
  if (parts <= 1) {
    body(int64_t{0}, count);
    return;
  }
  const auto run_part = [&](int64_t part) {
    const int64_t begin = grains * part / parts * grain;
    const int64_t end = std::min(count, grains * (part + 1) / parts * grain);
    if (begin < end) body(begin, end);
  };
  // Always uses all threads: libgomp ends threads that a smaller team does not need and restarts them for the next one.
#pragma omp parallel for schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) run_part(part);
}

}  // namespace vitrine::cpu
