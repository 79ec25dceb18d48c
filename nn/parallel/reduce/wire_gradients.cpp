// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/wire_gradients.h"

#include "kernels/cast.h"
#include "kernels/difference.h"
#include "runtime/copy.h"

namespace vitrine {

WireGradients::WireGradients(const ReducerContext& replica) : replica_(replica) {
  const DType dtype = replica.config.precision.reduce_dtype;
  if (replica.world_size < 2 || dtype == DType::f32) return;
  ExecContext& ctx = replica.device.compute();
  packed_ = ctx.allocate({replica.layout.parameter_elements()}, dtype, Category::communication, "gradients to reduce");
  error_ = ctx.allocate({2}, DType::f32, Category::staging, "reduction error");
  zero(ctx, packed_);
  zero(ctx, error_);
}

void WireGradients::pack(int64_t begin, int64_t end) {
  if (!packs()) return;
  ExecContext& ctx = replica_.device.compute();
  const PhaseScope phase(ctx, Phase::cast);
  cast(ctx, replica_.gradients.rows(begin, end), packed_.view().rows(begin, end));
}

void WireGradients::unpack() {
  if (!packs()) return;
  ExecContext& ctx = replica_.device.compute();
  const PhaseScope phase(ctx, Phase::cast);
  if (measures_) difference_norms(ctx, packed_, gradients(), error_);
  cast(ctx, packed_, gradients());
}

}  // namespace vitrine
