// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device.h"

namespace vitrine::cuda {

/// Checks that the GPUs of the list exist, and enables peer access for each pair that supports it.
/// throws DeviceError with the missing device and the remedy, CudaError.
void open_gpus(const DeviceGroupOptions& options);

/// Lets a GPU access another one's memory, where it can: GpuFeature::peer_access is on, and it has not too many peers.
/// Elsewhere copies between the two pass through the host. Returns whether it does. throws CudaError.
bool enable_peer_access(int from, int to);

/// What helps against a cudaError_t, for the end of its message: "; update the NVIDIA driver"; empty if nothing is
/// known.
const char* remedy(int code);

/// Default capacity of a logical device: its GPU's free memory less 5 %, divided among the logical devices that share
/// it.
int64_t default_capacity(const DeviceGroupOptions& options, size_t i);

/// Creates the parts of logical device `i` of the group.
Device::Parts make_parts(const DeviceGroupOptions& options, size_t i, int64_t capacity, OrderChecker* checker);

/// Bytes in use on a GPU by all processes. throws CudaError.
int64_t used_bytes(int gpu);

/// See Device::outside_bytes().
std::vector<OutsideBytes> outside_bytes(int64_t context_bytes, const std::vector<ExecContext*>& contexts);

/// Page-locked, page-aligned host memory that every GPU copies from and to asynchronously. throws OutOfMemory,
/// CudaError.
void* allocate_pinned(int64_t bytes);
void free_pinned(void* memory) noexcept;

}  // namespace vitrine::cuda
