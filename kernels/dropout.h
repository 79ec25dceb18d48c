// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Which random numbers a dropout draws: they belong to the sample, never to a device or a micro-batch.
struct DropoutConfig {
  float p = 0.5F;  // probability of a zero, 0 <= p < 1
  uint64_t seed = 0;
  int64_t step = 0;          // optimizer step
  int64_t layer = 0;         // which dropout of the model, from 1: 0 is that of other random numbers (runtime/philox.h)
  int64_t first_sample = 0;  // position of row 0 in the global batch of the step
};

/// y = x / (1 - p) where the element is kept, 0 where it is dropped. The mask is drawn from Philox4x32-10: key = seed, counter = (element / 4
/// within the sample, position in the global batch, step, layer); word element % 4 keeps the element when word >= p * 2^32. Nothing is kept
/// for backward: the same call on the gradient is the backward pass.
///   x, y (N, ...) equal; both f32, f16 or bf16, computed in f32; y may be x
/// throws  ShapeError, DtypeError, DeviceError, ConfigError when p is not in [0, 1)      source  Srivastava et al. 2014
void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y);

}  // namespace vitrine
