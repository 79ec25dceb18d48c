// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace vitrine::comm {

/// How P processes, each with one block of a buffer, exchange in ceil(log2 P) rounds, for any P. A process gathers the blocks that follow its own:
/// with the first `distance` of them at hand, it gets `blocks` more, all that are left at most, from the process `distance` ahead, and gives as many
/// of its own to the one `distance` behind. The same rounds backwards, sums in the place of copies, leave each process with the sum of its block.
/// source  Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems", 1997; backwards: Träff, "Optimal,
/// Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024
struct CirculantRound {
  int distance = 0, blocks = 0;
};
std::vector<CirculantRound> circulant_rounds(int processes);

/// Elements [begin, end) of a buffer.
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
/// Where the blocks first, first + 1, ... (modulo their number) lie: at most two ranges; the second is empty unless they wrap around.
///   offsets  the begin of each block, and the end of the last
std::array<ElementRange, 2> block_ranges(std::span<const int64_t> offsets, int first, int blocks);

/// The most elements that a process gets in one round.
int64_t largest_exchange(std::span<const int64_t> offsets);

}  // namespace vitrine::comm
