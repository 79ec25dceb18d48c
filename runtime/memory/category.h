// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace vitrine {

/// Purpose of a block of device memory. Fragmentation is not allocated: it is the space between the blocks at the peak.
enum class Category : uint8_t { parameters, gradients, optimizer, activations, workspace, staging, communication, fragmentation };
inline constexpr int kCategoryCount = 8;
const char* category_name(Category category);

using BytesByCategory = std::array<int64_t, kCategoryCount>;
/// Lists categories by size, largest first, without empty ones: "activations 3.1 MiB, parameters 1.0 MiB".
std::string describe_by_size(const BytesByCategory& bytes);

}  // namespace vitrine
