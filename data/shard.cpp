// SPDX-License-Identifier: Apache-2.0
#include "data/shard.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {

int64_t count_rows(const std::vector<RowRange>& ranges, int64_t global_rows) {
  int64_t rows = 0, end = 0;
  for (const RowRange& range : ranges) {
    if (range.begin < end || range.end < range.begin || range.end > global_rows) {
      throw ConfigError(
          fmt::format("shard: rows [{}, {}) of a batch of {} rows: expected a range within the batch from row {}; give "
                      "ascending ranges that "
                      "do not overlap",
                      range.begin, range.end, global_rows, end));
    }
    rows += range.end - range.begin;
    end = range.end;
  }
  return rows;
}

}  // namespace vitrine
