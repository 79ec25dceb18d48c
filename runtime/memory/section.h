// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace vitrine {

/// Identifies a part of a program whose allocations are placed together. The caller chooses the numbers. A key may
/// occur several times: each occurrence has its own placement, and those beyond the record use the last one.
using SectionKey = std::array<int64_t, 3>;

}  // namespace vitrine
