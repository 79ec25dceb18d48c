// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

#include "runtime/dtype.h"

namespace vitrine::cuda {

inline constexpr int kMostSumRanks = 64;

/// For i in [begin, end): every output's element i becomes the sum of the inputs' elements i, added in f32 in the order of `inputs`, held in
/// registers and rounded once.
///   dtype  f32, f16 or bf16, of all
/// At most kMostSumRanks of each, in memory that the current GPU reaches. An output may be an input.
void sum_to_all(cudaStream_t stream, DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end);

}  // namespace vitrine::cuda
