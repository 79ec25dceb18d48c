// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <span>

#include <vitrine/runtime/memory/history.h>

namespace vitrine {

/// A device's part of a snapshot.
struct SnapshotDevice {
  int64_t reserved_bytes = 0;  // of its slab
  MemoryHistory history;
};

/// Writes what torch.cuda.memory._snapshot() returns, pickled: https://pytorch.org/memory_viz and torch.cuda._memory_viz open it. Each device is one
/// segment, its slab; the trace takes it, then the blocks that were there at the start, then follows the changes. Frames tell tensor, layer, phase
/// and category. Addresses are offsets from 2^40 times the number of the device, counted from 1.
void write_memory_snapshot(std::ostream& out, std::span<const SnapshotDevice> devices);

}  // namespace vitrine
