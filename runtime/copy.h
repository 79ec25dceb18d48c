// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Copies `source` to `destination`: host to device, device to host, within a device or between devices.
///   requires  equal shapes and dtypes; host memory carries DeviceId::host()
/// stream  asynchronous on ctx, which belongs to one of the two devices; the bytes count towards the open span
///         aliasing  none
/// throws  ShapeError, DtypeError
void copy(ExecContext& ctx, ConstView source, View destination);

/// Sets every byte of `destination` to zero. Asynchronous.
void zero(ExecContext& ctx, View destination);

/// A block that copy_blocks() copies.
struct CopiedBlock {
  ConstView source;
  View destination;
};
inline constexpr size_t kMostCopiedBlocks = 4;

/// Copies small blocks between a device and the host's memory. On a GPU a kernel does, not a copy engine: as part of a
/// CUDA graph, it reads and writes what the memory contains when it runs.
///   blocks  at most kMostCopiedBlocks, of i32 or f32; empty ones are left out
///   last    empty, or (1) i32 that is copied after the blocks: a host that reads its new value, with acquire order,
///           sees them
///   requires  equal shapes and dtypes; pinned memory on the host's side if ctx belongs to a GPU
/// stream  asynchronous on ctx; the bytes of the blocks count towards the open span      aliasing  none
/// throws  ShapeError, DtypeError
void copy_blocks(ExecContext& ctx, std::span<const CopiedBlock> blocks, const CopiedBlock& last = {});

}  // namespace vitrine
