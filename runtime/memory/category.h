// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace vitrine {

/// What a block of device memory is for. Fragmentation is not allocated: it is what lies between the blocks at the peak.
enum class Category : uint8_t { parameters, gradients, optimizer, activations, workspace, staging, communication, fragmentation };
inline constexpr int kCategoryCount = 8;
const char* category_name(Category category);

using BytesByCategory = std::array<int64_t, kCategoryCount>;
/// "activations 3.1 MiB, parameters 1.0 MiB": the largest first, those of no bytes left out.
std::string describe_by_size(const BytesByCategory& bytes);

}  // namespace vitrine
