// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublaslt_algorithm.h"

#include <charconv>

#include <fmt/format.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cublaslt_library.h"

namespace vitrine::cuda {
namespace {

constexpr size_t kWords = std::size(cublasLtMatmulAlgo_t{}.data);
constexpr size_t kDigits = 16;  // of a word

/// -1: this algorithm does not have it.
template <class T>
int64_t attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  size_t written = 0;
  const cublasStatus_t status =
      cublaslt().MatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? int64_t{value} : -1;
}

}  // namespace

std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text =
      fmt::format("algorithm {} tile {} stages {} splits {} reduction {} swizzle {} custom {} inner {} cluster {}: ",
                  attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
                  attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
                  attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                  attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                  attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                  attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                  attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                  attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
                  attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> restore_algorithm(const LtProblem& problem, const std::string& text,
                                                      int64_t scratch_bytes) {
  const size_t colon = text.rfind(": ");
  if (colon == std::string::npos || text.size() != colon + 2 + kWords * kDigits) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm{};
  for (size_t i = 0; i < kWords; ++i) {
    const char* const begin = text.data() + colon + 2 + i * kDigits;
    if (std::from_chars(begin, begin + kDigits, algorithm.data[i], 16).ptr != begin + kDigits) return std::nullopt;
  }
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublaslt().MatmulAlgoCheck(problem.handle, problem.operation, problem.a, problem.b,
                                                           problem.c, problem.c, &algorithm, &result);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      status == CUBLAS_STATUS_ARCH_MISMATCH)
    return std::nullopt;
  VITRINE_CUBLAS_CHECK(status);
  if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(scratch_bytes))
    return std::nullopt;
  return algorithm;
}

}  // namespace vitrine::cuda
