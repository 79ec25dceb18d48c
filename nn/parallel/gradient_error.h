// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <vitrine/nn/parallel/engine.h>

namespace vitrine {

/// How wrong the gradient of a parameter is, to check a layer's backward pass: the largest distance between its
/// elements and central differences of the mean loss, as a share of the largest difference. About 1e-3 where it is
/// right; behind ReLU and maxima up to 5e-2, since a step may cross their kinks. Takes a training step and evaluates
/// the batch twice for each element; the parameters are then as before, the optimizer's states are not.
///   requires  f32, a workload with this batch in training and evaluation, no dropout, running statistics or label
///             smoothing, with which the two losses differ
///   step      how far each element is moved
/// throws  ConfigError: the model has no parameter of that name; what train_step() and evaluate() throw
double gradient_error(Engine& engine, const HostBatch& batch, const std::string& parameter, float step = 1e-2F);

}  // namespace vitrine
