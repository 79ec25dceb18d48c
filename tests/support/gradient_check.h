// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "nn/layer.h"
#include "tests/support/device_fixture.h"
#include "tests/support/layer_reference.h"

namespace vitrine::test {

/// The forward pass of a layer in double precision, from its input and its parameters in the order of
/// Layer::parameters().
using ReferenceForward = std::function<DoubleTensor(const DoubleTensor& x, const std::vector<DoubleTensor>& params)>;

/// Checks a layer against `reference`, with random input, parameters and gradient of the output:
///   * forward returns the output of the reference;
///   * backward returns, for the input and every parameter, the central differences of sum(grad_y * reference) at up to
///     60 elements of each;
///   * in overwrite mode the old content of the gradients has no effect, in accumulate mode it is added;
///   * the gradients of the parameters do not depend on whether the gradient of the input is computed;
///   * all memory that forward kept is released.
/// With pass.input_form, `input` is the shape of the images and x is any tensor of that form.
/// The order checker is on, so every operation must declare what it reads and writes.
void check_gradients(const Layer& layer, const Shape& input, const Pass& pass, uint64_t seed,
                     const ReferenceForward& reference);

}  // namespace vitrine::test
