// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {  // dropout_cpu.cpp
VITRINE_CPU_LEVELS(dropout, ExecContext&, const DropoutConfig&, ConstView, View, ConstView);
}  // namespace cpu

namespace cuda {  // dropout.cu
void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y, ConstView values);
}  // namespace cuda

void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y, ConstView values) {
  constexpr const char* kName = "dropout";
  if (!(config.p >= 0.0F && config.p < 1.0F)) {
    throw ConfigError(fmt::format("{}: p is {}, expected a probability in [0, 1)", kName, config.p));
  }
  if (x.shape.rank() < 1) throw ShapeError(fmt::format("{}: x has shape {}, expected (N, ...)", kName, x.shape.str()));
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  if (values) check::tensor(kName, "values", values, {StepValues::kCount}, DType::i32, ctx);
  run(ctx, {kName, {x, values}, {y}}, cpu::dropout, VITRINE_IF_CUDA(cuda::dropout), config, x, y, values);
}

}  // namespace vitrine
