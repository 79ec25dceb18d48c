// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/check.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {

const Shape& single_input(const Layer& layer, std::span<const Shape> inputs) {
  if (inputs.size() != 1) throw ShapeError(fmt::format("{}: got {} inputs but takes 1", layer.describe(), inputs.size()));
  return inputs[0];
}

const Shape& single_image_input(const Layer& layer, std::span<const Shape> inputs) {
  const Shape& x = single_input(layer, inputs);
  if (x.rank() != 4) throw ShapeError(fmt::format("{}: input has shape {} but images (N, H, W, C) are needed", layer.describe(), x.str()));
  return x;
}

}  // namespace vitrine
