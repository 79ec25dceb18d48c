// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"

namespace vitrine {
namespace cpu {  // elementwise_cpu.cpp
VITRINE_CPU_LEVELS(add, ExecContext&, ConstView, ConstView, View);
}  // namespace cpu

namespace cuda {  // elementwise.cu
void add(ExecContext& ctx, ConstView a, ConstView b, View y);
}  // namespace cuda

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  constexpr const char* kName = "add";
  check::tensor(kName, "a", a, ctx);
  check::tensor(kName, "b", b, a.shape, a.dtype, ctx);
  check::tensor(kName, "y", y, a.shape, a.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"a", a}, {"b", b}});
  run(ctx, {kName, {a, b}, {y}}, cpu::add, VITRINE_IF_CUDA(cuda::add), a, b, y);
}

}  // namespace vitrine
