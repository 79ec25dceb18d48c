// SPDX-License-Identifier: Apache-2.0
#include "kernels/image.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/implementations.h"
#include "runtime/error.h"

namespace vitrine {

void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y) {
  constexpr const char* kName = "resize_normalize";
  check::rank(kName, "images", images, 4, "(N, h, w, C)");
  check::rank(kName, "y", y, 4, "(N, H, W, C)");
  const Shape& in = images.shape;
  const Shape& out = y.shape;
  if (in[1] < 1 || in[2] < 1 || in[3] < 1 || in[3] > 4) {
    throw ShapeError(fmt::format("{}: images has shape {}, expected (N, h, w, C) with h, w >= 1 and 1 <= C <= 4", kName, in.str()));
  }
  if (out[0] != in[0] || out[3] != in[3]) {
    throw ShapeError(fmt::format("{}: y has shape {} but images {} needs y of shape ({}, H, W, {})", kName, out.str(), in.str(), in[0], in[3]));
  }
  check::tensor(kName, "images", images, in, DType::u8, ctx);
  check::storage(kName, "y", y);
  check::tensor(kName, "y", y, out, y.dtype, ctx);
  check::no_overlap(kName, "y", y, "images", images);
  run(ctx, {kName, {images}, {y}}, VITRINE_IMPLEMENTATIONS(resize_normalize), normalization, images, y);
}

}  // namespace vitrine
