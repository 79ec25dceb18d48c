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
  std::string use;  // what the kernels use it for
};

/// The libraries that the kernels of a backend use, for reports; for meta devices the CPU's. With Backend::cuda, this
/// loads cuBLASLt.
std::vector<LibraryInfo> kernel_libraries(Backend backend);

}  // namespace vitrine
