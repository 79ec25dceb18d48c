// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace vitrine {

/// What a block of device memory is for. Fragmentation is not allocated: it is what lies between the blocks at the peak.
enum class Category : uint8_t { parameters, gradients, optimizer, activations, workspace, staging, communication, packed, fragmentation };
inline constexpr int kCategoryCount = 9;
const char* category_name(Category category);

using BytesByCategory = std::array<int64_t, kCategoryCount>;

}  // namespace vitrine
