// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "kernels/check.h"
#include "kernels/cpu/kernels.h"

namespace vitrine {

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  constexpr const char* kName = "add";
  check::tensor(kName, "a", a, a.shape, DType::f32, ctx);
  check::tensor(kName, "b", b, a.shape, DType::f32, ctx);
  check::tensor(kName, "y", y, a.shape, DType::f32, ctx);
  if (y.data != a.data) check::no_overlap(kName, "y", y, "a", a);
  if (y.data != b.data) check::no_overlap(kName, "y", y, "b", b);
  ctx.dispatch({kName, {a, b}, {y}}, [=, &ctx] { cpu::add(ctx, a, b, y); });
}

}  // namespace vitrine
