// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

namespace vitrine::cuda {

inline constexpr int kMostSumRanks = 64;

/// For i in [begin, end): every output's element i becomes the sum of the inputs' elements i, added in the order of `inputs` and held in registers.
/// At most kMostSumRanks of each, in memory that the current GPU reaches. An output may be an input.
void sum_to_all(cudaStream_t stream, std::span<const float* const> inputs, std::span<float* const> outputs, int64_t begin, int64_t end);

}  // namespace vitrine::cuda
