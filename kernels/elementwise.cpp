// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "kernels/check.h"
#include "kernels/implementations.h"

namespace vitrine {

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  constexpr const char* kName = "add";
  check::storage(kName, "a", a);
  check::tensor(kName, "a", a, a.shape, a.dtype, ctx);
  check::tensor(kName, "b", b, a.shape, a.dtype, ctx);
  check::tensor(kName, "y", y, a.shape, a.dtype, ctx);
  if (y.data != a.data) check::no_overlap(kName, "y", y, "a", a);
  if (y.data != b.data) check::no_overlap(kName, "y", y, "b", b);
  run(ctx, {kName, {a, b}, {y}}, VITRINE_IMPLEMENTATIONS(add), a, b, y);
}

void cast(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "cast";
  check::storage(kName, "x", x);
  check::storage(kName, "y", y);
  check::tensor(kName, "x", x, x.shape, x.dtype, ctx);
  check::tensor(kName, "y", y, x.shape, y.dtype, ctx);
  check::no_overlap(kName, "y", y, "x", x);
  if (x.numel() == 0) return;
  run(ctx, {kName, {x}, {y}}, VITRINE_IMPLEMENTATIONS(cast), x, y);
}

}  // namespace vitrine
