// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/process_exchange.h"

#include <algorithm>
#include <numeric>

#include "runtime/comm/circulant.h"

namespace vitrine::comm {

std::vector<int64_t> offsets_of(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets(counts.size() + 1, 0);
  std::inclusive_scan(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

int64_t sum_scratch_elements(DType dtype, int64_t count, int processes, int largest_direct) {
  constexpr int64_t kTreeSegmentBytes = int64_t{16} << 20;  // of a sum along a tree at a time
  const int64_t share = std::max<int64_t>(1, (count + processes - 1) / processes);
  if (processes <= largest_direct) return 2 * processes * std::min(ProcessExchange::kPartBytes / size_of(dtype), share);
  return (processes / 2) * std::min(std::max<int64_t>(1, kTreeSegmentBytes / size_of(dtype) / processes), share);
}

int64_t tree_scratch_elements(DType dtype, int64_t count, int processes, int64_t contributions) {
  const int64_t share = std::max<int64_t>(1, (count + processes - 1) / processes);
  return 2 * contributions * std::min(ProcessExchange::kPartBytes / size_of(dtype), share);
}

int64_t scattered_scratch_elements(DType dtype, std::span<const int64_t> counts, int largest_direct) {
  const auto processes = static_cast<int>(counts.size());
  if (processes > largest_direct) return largest_exchange(offsets_of(counts));
  return sum_scratch_elements(dtype, std::accumulate(counts.begin(), counts.end(), int64_t{0}), processes,
                              largest_direct);
}

}  // namespace vitrine::comm
