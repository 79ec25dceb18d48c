// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.h"

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"

namespace vitrine {
namespace cpu {  // cast_cpu.cpp
VITRINE_CPU_LEVELS(cast, ExecContext&, ConstView, View);
}  // namespace cpu

namespace cuda {  // cast.cu
void cast(ExecContext& ctx, ConstView x, View y);
}  // namespace cuda

void cast(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "cast";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, ctx);
  check::shape(kName, "y", y, x.shape);
  check::no_overlap(kName, {"y", y}, {{"x", x}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x}, {y}}, cpu::cast, VITRINE_IF_CUDA(cuda::cast), x, y);
}

}  // namespace vitrine
