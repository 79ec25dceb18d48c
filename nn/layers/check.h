// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "nn/layer.h"

namespace vitrine {

/// The one input of a layer. throws ShapeError when there is another number of them.
const Shape& single_input(const Layer& layer, std::span<const Shape> inputs);
/// The one input, an image batch. throws ShapeError unless it is (N, H, W, C).
const Shape& single_image_input(const Layer& layer, std::span<const Shape> inputs);

}  // namespace vitrine
