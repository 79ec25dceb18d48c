// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"

namespace vitrine::cuda {

inline constexpr int kMostSumRanks = 64;

/// For i in [begin, end): sets element i of every output to the inputs' elements i combined in the order of `inputs`,
/// in f32 registers, rounded once; i32 in i32.
///   dtype  f32, f16, bf16 or i32, of all inputs and outputs
/// At most kMostSumRanks of each, in memory that the current GPU can access. An output may be an input.
void combine_to_all(cudaStream_t stream, DType dtype, comm::Reduction reduction, std::span<const void* const> inputs,
                    std::span<void* const> outputs, int64_t begin, int64_t end);

}  // namespace vitrine::cuda
