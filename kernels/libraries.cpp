// SPDX-License-Identifier: Apache-2.0
#include "kernels/libraries.h"

#include <Eigen/Core>
#include <fmt/format.h>

#include "kernels/cpu/onednn.h"

namespace vitrine {
namespace cuda {
std::vector<LibraryInfo> kernel_libraries();  // cuda/libraries.cpp, no_cuda.cpp
}

std::vector<LibraryInfo> kernel_libraries(Backend backend) {
  // Loading cuBLASLt costs a process 84 MiB.
  if (backend == Backend::cuda) return cuda::kernel_libraries();
  std::vector<LibraryInfo> libraries;
  const std::optional<LibraryInfo> onednn = cpu::onednn::library();
  if (onednn) libraries.push_back(*onednn);
  libraries.push_back(
      {"Eigen", fmt::format("{}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION),
       onednn ? "elementwise mathematics" : "convolution, matrix products and elementwise mathematics"});
  return libraries;
}

std::string cpu_arithmetic() {
  std::string text;
  for (const LibraryInfo& library : kernel_libraries(Backend::cpu)) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", library.name, library.version);
    if (!library.instruction_set.empty())
      text += fmt::format(" ({}; {})", library.instruction_set,
                          cpu::onednn::computes(DType::bf16) ? "f32 and bf16" : "f32");
  }
  return text;
}

}  // namespace vitrine
