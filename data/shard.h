// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <vitrine/runtime/row_range.h>

namespace vitrine {

/// The rows that one process takes of a global batch of that size: ascending, disjoint, perhaps none. Pure: the same size gives the same rows.
using ShardFunction = std::function<std::vector<RowRange>(int64_t global_rows)>;

/// Sum of the lengths of one process's ranges.
/// throws ConfigError when a range does not lie within the batch, ends before it begins, or begins before the one ahead of it ends.
int64_t count_rows(const std::vector<RowRange>& ranges, int64_t global_rows);

}  // namespace vitrine
