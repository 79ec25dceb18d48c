// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"

namespace vitrine::cuda {

/// Private to runtime and kernels.
inline constexpr int kMostSumRanks = 64;

/// For i in [begin, end): sets element i of every output to the inputs' elements i combined in the order of `inputs`,
/// in f32 registers, rounded once; i32 in i32.
///   dtype  f32, f16, bf16 or i32, of all inputs and outputs
/// At most kMostSumRanks of each, in memory that the current GPU can access. An output may be an input.
void combine_to_all(cudaStream_t stream, DType dtype, comm::Combination combination,
                    std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end);

/// The same for the first `count` elements of f32, f16 or bf16, added along the tree whose order is `folds`
/// (TreeOrder), in f32, and each sum rounded. At most TreeOrder::kMostNodes inputs and kMostSumRanks outputs.
void tree_sum(cudaStream_t stream, DType dtype, std::span<const uint8_t> folds, std::span<const void* const> inputs,
              std::span<void* const> outputs, int64_t count);

}  // namespace vitrine::cuda
