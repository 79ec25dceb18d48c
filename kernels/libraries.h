// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine {

/// A third-party library that kernels were built with.
struct LibraryInfo {
  std::string name;
  std::string version;
  std::string use;  // what it does here
};

/// Those of this build, for reports.
std::vector<LibraryInfo> kernel_libraries();

}  // namespace vitrine
