// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "runtime/exec_context.h"
#include "runtime/order_checker.h"

namespace vitrine {

/// Reports to the order checker what the operation that is dispatched next reads in addition to OpInfo::reads, which
/// has a fixed length.
inline void note_reads(ExecContext& ctx, const char* operation, std::span<const ConstView> reads) {
  OrderChecker* const checker = ctx.stream().checker();
  if (checker == nullptr) return;
  std::vector<MemoryAccess> accesses;
  for (const ConstView& view : reads) {
    if (view && view.bytes() > 0)
      accesses.push_back({view.data, view.bytes(), false, operation, view.device.is_host()});
  }
  checker->on_operation(ctx.stream().checker_index(), operation, accesses);
}

}  // namespace vitrine
