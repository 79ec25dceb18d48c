// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "kernels/check.h"
#include "kernels/implementations.h"

namespace vitrine {

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  constexpr const char* kName = "add";
  check::tensor(kName, "a", a, a.shape, DType::f32, ctx);
  check::tensor(kName, "b", b, a.shape, DType::f32, ctx);
  check::tensor(kName, "y", y, a.shape, DType::f32, ctx);
  if (y.data != a.data) check::no_overlap(kName, "y", y, "a", a);
  if (y.data != b.data) check::no_overlap(kName, "y", y, "b", b);
  run(ctx, {kName, {a, b}, {y}}, VITRINE_IMPLEMENTATIONS(add), a, b, y);
}

}  // namespace vitrine
