// SPDX-License-Identifier: Apache-2.0
#include "kernels/cross_entropy.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/implementations.h"
#include "runtime/error.h"

namespace vitrine {

void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets, ConstView loss_scale,
                           View grad_logits, View totals) {
  constexpr const char* kName = "softmax_cross_entropy";
  check::rank(kName, "logits", logits, 2, "(N, C)");
  if (logits.shape[1] < 1) throw ShapeError(fmt::format("{}: logits has shape {}, expected (N, C) with C >= 1", kName, logits.shape.str()));
  check::storage(kName, "logits", logits);
  check::tensor(kName, "logits", logits, logits.shape, logits.dtype, ctx);
  check::tensor(kName, "targets", targets, {logits.shape[0]}, DType::i32, ctx);
  check::tensor(kName, "totals", totals, {LossTotals::kCount}, DType::f32, ctx);
  check::no_overlap(kName, "totals", totals, "logits", logits);
  check::no_overlap(kName, "totals", totals, "targets", targets);
  if (loss_scale) check::tensor(kName, "loss_scale", loss_scale, {1}, DType::f32, ctx);
  check::no_overlap(kName, "totals", totals, "loss_scale", loss_scale);
  if (grad_logits) {
    check::tensor(kName, "grad_logits", grad_logits, logits.shape, logits.dtype, ctx);
    check::no_overlap(kName, "grad_logits", grad_logits, "loss_scale", loss_scale);
    if (grad_logits.data != logits.data) check::no_overlap(kName, "grad_logits", grad_logits, "logits", logits);
    check::no_overlap(kName, "grad_logits", grad_logits, "targets", targets);
    check::no_overlap(kName, "grad_logits", grad_logits, "totals", totals);
  }
  run(ctx, {kName, {logits, targets, loss_scale, totals}, {grad_logits, totals}}, VITRINE_IMPLEMENTATIONS(softmax_cross_entropy), config, logits,
      targets, loss_scale, grad_logits, totals);
}

}  // namespace vitrine
