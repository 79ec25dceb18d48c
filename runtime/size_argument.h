// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// Formats a size of at least `bytes` as options accept it: "7KiB", "512MiB". requires bytes >= 0
std::string size_argument(int64_t bytes);

}  // namespace vitrine
