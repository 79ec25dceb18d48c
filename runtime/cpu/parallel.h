// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>  // builds without OpenMP have cpu/no_openmp/omp.h

namespace vitrine::cpu {

/// Threads that parallel_for uses: those of the device whose worker calls it; 1 without OpenMP.
inline int team_size() { return omp_get_max_threads(); }

/// Calls body(begin, end) on consecutive parts of [0, count), one part per thread of the team, the same parts every time; all but the last are
/// multiples of `grain`. A count below one grain runs on the calling thread. requires  `body` does not throw
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
  // Always the whole team: libgomp ends the threads that a smaller team does not need and starts new ones for the next.
#pragma omp parallel for schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) run_part(part);
}

}  // namespace vitrine::cpu
