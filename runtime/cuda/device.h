// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device.h"

namespace vitrine::cuda {

/// Checks that the GPUs of the list are there, and lets each pair of them reach the other's memory where the machine can.
/// throws DeviceError with what is missing and the remedy, CudaError.
void open_gpus(const DeviceGroupOptions& options);

/// What a logical device may take when the user does not say: what its GPU has free, less 5 %, divided among those that share it.
int64_t default_capacity(const DeviceGroupOptions& options, size_t i);

/// The parts of logical device `i` of the group.
Device::Parts make_parts(const DeviceGroupOptions& options, size_t i, int64_t capacity, OrderChecker* checker);

/// Bytes in use on a GPU, by anybody. throws CudaError.
int64_t used_bytes(int gpu);

}  // namespace vitrine::cuda
