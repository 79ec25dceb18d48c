// SPDX-License-Identifier: Apache-2.0
#include "kernels/non_finite.h"

#include "kernels/check.h"
#include "kernels/implementations.h"

namespace vitrine {

void find_non_finite(ExecContext& ctx, ConstView x, int32_t tag, View found) {
  constexpr const char* kName = "find_non_finite";
  check::storage(kName, "x", x);
  check::tensor(kName, "x", x, x.shape, x.dtype, ctx);
  check::tensor(kName, "found", found, {1}, DType::i32, ctx);
  check::no_overlap(kName, "found", found, "x", x);
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, found}, {found}}, VITRINE_IMPLEMENTATIONS(find_non_finite), x, tag, found);
}

}  // namespace vitrine
