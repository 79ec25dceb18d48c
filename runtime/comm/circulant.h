// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace vitrine::comm {

/// Schedule by which P processes, each with one block of a buffer, exchange in ceil(log2 P) rounds, for any P. A
/// process gathers the blocks that follow its own: once it has the first `distance` of them, it receives up to `blocks`
/// more from the process `distance` ahead, and sends as many to the process `distance` back. The same rounds
/// in reverse order, with sums instead of copies, leave each process with the sum of its block. source  Bruck et al.,
/// "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems", 1997; reversed: Träff,
/// "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024
struct CirculantRound {
  int distance = 0, blocks = 0;
};
std::vector<CirculantRound> circulant_rounds(int processes);

/// Elements [begin, end) of a buffer.
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
/// Ranges of the blocks first, first + 1, ... (modulo their number): at most two; the second is empty unless the blocks
/// wrap around.
///   offsets  the start of each block, and the end of the last
std::array<ElementRange, 2> block_ranges(std::span<const int64_t> offsets, int first, int blocks);

/// The most elements that a process receives in one round.
int64_t largest_exchange(std::span<const int64_t> offsets);

}  // namespace vitrine::comm
