// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <span>

#include <vitrine/runtime/memory/history.h>

namespace vitrine {

/// One device's part of a snapshot.
struct SnapshotDevice {
  int64_t reserved_bytes = 0;  // of its slab
  MemoryHistory history;
};

/// Writes what torch.cuda.memory._snapshot() returns, as JSON, for torch.cuda._memory_viz. Each device is one segment,
/// its slab. The trace allocates the segment and the blocks from before the beginning, then follows the changes. Frames
/// show tensor, layer, phase and category. Addresses are offsets from 2^40 times the number of the device, counted
/// from 1.
void write_memory_snapshot(std::ostream& out, std::span<const SnapshotDevice> devices);

}  // namespace vitrine
