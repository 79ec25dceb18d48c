// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "nn/model.h"

/// Devices that are lost at random instants while an engine trains in exact mode.
namespace vitrine::test {

/// Trains a few steps on four CPU devices, again and again, until `losses` devices were lost, each of them at an
/// instant that the seed draws, and expects the results and the state of a run without losses.
void expect_one_hash_in_spite_of_losses(const Model& model, DType dtype, int accumulate, int losses, uint32_t seed);

}  // namespace vitrine::test
