// SPDX-License-Identifier: Apache-2.0
#include "kernels/difference.h"

#include "kernels/check.h"
#include "kernels/implementations.h"

namespace vitrine {

void difference_norms(ExecContext& ctx, ConstView x, ConstView reference, View norms) {
  constexpr const char* kName = "difference_norms";
  check::rank(kName, "x", x, 1, "(n)");
  check::storage(kName, "x", x);
  check::tensor(kName, "x", x, x.shape, x.dtype, ctx);
  check::tensor(kName, "reference", reference, x.shape, DType::f32, ctx);
  check::tensor(kName, "norms", norms, {2}, DType::f32, ctx);
  check::no_overlap(kName, "norms", norms, "x", x);
  check::no_overlap(kName, "norms", norms, "reference", reference);
  run(ctx, {kName, {x, reference}, {norms}}, VITRINE_IMPLEMENTATIONS(difference_norms), x, reference, norms);
}

}  // namespace vitrine
