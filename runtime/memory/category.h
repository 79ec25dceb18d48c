// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace vitrine {

/// Purpose of a block of device memory. Batches are staging; images that stay on the device are dataset. Fragmentation
/// is not allocated: it is the bytes by which the peak exceeds the largest sum of blocks.
enum class Category : uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  workspace,
  staging,
  dataset,
  communication,
  fragmentation
};
inline constexpr int kCategoryCount = 9;
const char* category_name(Category category);

using BytesByCategory = std::array<int64_t, kCategoryCount>;
/// Sum of all categories but fragmentation. Of a peak it is the lower bound: no placement of the blocks takes less.
int64_t allocated_bytes(const BytesByCategory& bytes);
/// Lists categories by size, largest first, without empty ones: "activations 3.1 MiB, parameters 1.0 MiB".
std::string describe_by_size(const BytesByCategory& bytes);

}  // namespace vitrine
