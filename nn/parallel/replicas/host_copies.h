// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "nn/parallel/replicas/replica.h"

/// Private to nn/parallel.
namespace vitrine {

/// `count` values of f32, f16 or bf16 in host memory, as f32.
void widen_on_host(DType dtype, const void* values, int64_t count, float* wide);
/// The same values in a 16-bit dtype.
std::vector<std::byte> narrow_on_host(DType dtype, std::span<const float> wide);

/// The host reads what streams have written to its memory. throws OrderError where the order is checked and the host
/// has not waited for them.
void note_host_read(DeviceGroup& devices, const char* operation, const ConstView& memory);

/// Copies a flat buffer of a replica to the host, as f32; waits.
std::vector<float> read_flat(DeviceGroup& devices, Replica& r, const View& flat);

}  // namespace vitrine
