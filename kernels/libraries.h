// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <vitrine/runtime/device_id.h>

namespace vitrine {

/// A third-party library that the kernels use.
struct LibraryInfo {
  std::string name;
  std::string version;
  std::string use;                   // what the kernels use it for
  std::string instruction_set = {};  // of the code that it makes for this processor, as in ONEDNN_MAX_CPU_ISA
};

/// The libraries that the kernels of a backend use, for reports; for meta devices the CPU's. With Backend::cuda, this
/// loads cuBLASLt.
std::vector<LibraryInfo> kernel_libraries(Backend backend);
/// What decides the bits of CPU operations beside values and settings: "oneDNN 2.6.3 (AVX2; f32), Eigen 3.4.0".
std::string cpu_arithmetic();

}  // namespace vitrine
