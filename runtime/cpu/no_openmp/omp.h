// SPDX-License-Identifier: Apache-2.0
// Replaces OpenMP's header in builds without OpenMP: a team of one thread.
#pragma once

inline int omp_get_max_threads() { return 1; }
inline void omp_set_num_threads(int /*threads*/) {}
