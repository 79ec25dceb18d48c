// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine {

/// A third-party library that the kernels use.
struct LibraryInfo {
  std::string name;
  std::string version;
  std::string use;  // what the kernels use it for
};

/// The libraries of this build, for reports.
std::vector<LibraryInfo> kernel_libraries();

}  // namespace vitrine
