// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "nn/layer.h"
#include "tests/support/device_fixture.h"
#include "tests/support/layer_reference.h"

namespace vitrine::test {

/// A layer's forward pass in double precision, of its input and its parameters in the order of Layer::parameters().
using ReferenceForward = std::function<DoubleTensor(const DoubleTensor& x, const std::vector<DoubleTensor>& params)>;

/// Checks a layer of one input and one output against `reference`, on random input, parameters and gradient of the output:
///   * forward makes the same output;
///   * backward makes, for the input and every parameter, the central differences of sum(grad_y * reference) at up to 60 elements of each;
///   * overwriting leaves nothing of what the gradients held, accumulating adds to it;
///   * without a gradient of the input, those of the parameters are the same;
///   * what forward kept is all given back.
/// The order checker is on, so every operation has declared what it touches.
void check_gradients(const Layer& layer, const Shape& input, const Pass& pass, uint64_t seed, const ReferenceForward& reference);

}  // namespace vitrine::test
