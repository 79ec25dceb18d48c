// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <cublasLt.h>

namespace vitrine::cuda {

/// A product in cuBLASLt's column-major view. The descriptors are owned elsewhere.
struct LtProblem {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
};

/// The algorithm as text: its attributes for readers, and all of it in hexadecimal digits, which only the same version
/// of cuBLASLt understands. "algorithm 21 tile 20 stages 11 splits 1 reduction 0 swizzle 0 custom 0 inner 0 cluster 0:
/// 0000001500000014..."
std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm);

/// The algorithm of the text; nothing if it is not such a text, or if cuBLASLt refuses the algorithm for this product
/// or in this much scratch.
std::optional<cublasLtMatmulAlgo_t> restore_algorithm(const LtProblem& problem, const std::string& text,
                                                      int64_t scratch_bytes);

}  // namespace vitrine::cuda
