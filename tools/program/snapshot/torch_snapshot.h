// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory/placement.h"

namespace vitrine::tools {

/// A device's memory under PyTorch's caching allocator, as a snapshot's trace tells it. Event 0 is the beginning of the
/// trace; entry i happens at event i + 1. Blocks from before the trace begin at event 0, and those that are left at its
/// end stay to the last event.
struct TorchDevice {
  /// PyTorch rounds the sizes of blocks up to multiples of this.
  static constexpr int64_t kRounding = 512;

  int index = 0;
  std::vector<BlockLifetime> blocks;  // bytes are rounded; the group is the number of the stream
  std::vector<std::string> sites;     // of each block: where it was allocated
  int64_t peak_reserved_bytes = 0;    // of the segments
  int64_t entries = 0;                // of the trace
};

/// Reads what torch.cuda.memory._dump_snapshot() wrote, or the same as JSON (a text that begins with '{'). Devices
/// without blocks are left out.
///   source  names the text in messages
/// throws  DataError for a text that is not a snapshot, is damaged, contradicts itself, or has no history
std::vector<TorchDevice> read_torch_snapshot(const std::string& source, std::string_view text);

/// What our placement makes of a device's blocks.
struct SnapshotExplanation {
  int64_t peak_allocated_bytes = 0;  // the largest sum of blocks
  int64_t lower_bound_bytes = 0;     // no placement is below, if streams share no memory
  int64_t placed_bytes = 0;          // what place_blocks() needs
  size_t placed_blocks = 0;          // fewer than all if the trace is long: those in use around the peak
  std::vector<size_t> at_peak;       // blocks in use at the peak, the largest first
};
SnapshotExplanation explain_snapshot(const TorchDevice& device);

}  // namespace vitrine::tools
