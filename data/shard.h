// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <vitrine/runtime/row_range.h>

namespace vitrine {

/// Selects the rows of one process in a global batch of that size: ascending, disjoint, possibly none. Must be pure:
/// one size, one result.
using ShardFunction = std::function<std::vector<RowRange>(int64_t global_rows)>;

/// Sum of the lengths of one process's ranges.
/// throws ConfigError if a range exceeds the batch, ends before it begins, or begins before the previous one ends.
int64_t count_rows(const std::vector<RowRange>& ranges, int64_t global_rows);

}  // namespace vitrine
