// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/circulant.h"

#include <algorithm>

namespace vitrine::comm {

std::vector<CirculantRound> circulant_rounds(int processes) {
  std::vector<CirculantRound> rounds;
  for (int distance = 1; distance < processes; distance *= 2)
    rounds.push_back({distance, std::min(distance, processes - distance)});
  return rounds;
}

std::array<ElementRange, 2> block_ranges(std::span<const int64_t> offsets, int first, int blocks) {
  const int count = static_cast<int>(offsets.size()) - 1;
  const auto at = [&](int block) { return offsets[static_cast<size_t>(block)]; };
  const int begin = first % count, end = begin + blocks;
  return {ElementRange{at(begin), at(std::min(end, count))}, ElementRange{at(0), at(std::max(end - count, 0))}};
}

int64_t largest_exchange(std::span<const int64_t> offsets) {
  const int count = static_cast<int>(offsets.size()) - 1;
  int64_t largest = 0;
  for (const CirculantRound& round : circulant_rounds(count)) {
    for (int first = 0; first < count; ++first) {
      const std::array<ElementRange, 2> ranges = block_ranges(offsets, first, round.blocks);
      largest = std::max(largest, ranges[0].size() + ranges[1].size());
    }
  }
  return largest;
}

}  // namespace vitrine::comm
