// SPDX-License-Identifier: Apache-2.0
#include "kernels/cross_entropy.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/implementations.h"
#include "runtime/error.h"

namespace vitrine {

void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets, View grad_logits, View totals) {
  constexpr const char* kName = "softmax_cross_entropy";
  check::rank(kName, "logits", logits, 2, "(N, C)");
  if (logits.shape[1] < 1) throw ShapeError(fmt::format("{}: logits has shape {}, expected (N, C) with C >= 1", kName, logits.shape.str()));
  check::tensor(kName, "logits", logits, logits.shape, DType::f32, ctx);
  check::tensor(kName, "targets", targets, {logits.shape[0]}, DType::i32, ctx);
  check::tensor(kName, "totals", totals, {LossTotals::kCount}, DType::f32, ctx);
  check::no_overlap(kName, "totals", totals, "logits", logits);
  check::no_overlap(kName, "totals", totals, "targets", targets);
  if (grad_logits) {
    check::tensor(kName, "grad_logits", grad_logits, logits.shape, DType::f32, ctx);
    if (grad_logits.data != logits.data) check::no_overlap(kName, "grad_logits", grad_logits, "logits", logits);
    check::no_overlap(kName, "grad_logits", grad_logits, "targets", targets);
    check::no_overlap(kName, "grad_logits", grad_logits, "totals", totals);
  }
  run(ctx, {kName, {logits, targets, totals}, {grad_logits, totals}}, VITRINE_IMPLEMENTATIONS(softmax_cross_entropy), config, logits, targets,
      grad_logits, totals);
}

}  // namespace vitrine
