// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/implementations.h"
#include "runtime/error.h"

namespace vitrine {

void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y) {
  constexpr const char* kName = "dropout";
  if (!(config.p >= 0.0F && config.p < 1.0F)) {
    throw ConfigError(fmt::format("{}: p is {}, expected a probability in [0, 1)", kName, config.p));
  }
  if (x.shape.rank() < 1) throw ShapeError(fmt::format("{}: x has shape {}, expected (N, ...)", kName, x.shape.str()));
  check::storage(kName, "x", x);
  check::tensor(kName, "x", x, x.shape, x.dtype, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  if (y.data != x.data) check::no_overlap(kName, "y", y, "x", x);
  run(ctx, {kName, {x}, {y}}, VITRINE_IMPLEMENTATIONS(dropout), config, x, y);
}

}  // namespace vitrine
