// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/step_values.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Selects the random numbers of a dropout. They belong to the sample, never to a device or micro-batch.
struct DropoutConfig {
  float p = 0.5F;  // probability that an element is zeroed, 0 <= p < 1
  uint64_t seed = 0;
  int64_t step = 0;  // optimizer step
  int64_t layer =
      0;  // number of the dropout in the model, from 1; 0 is used by other random numbers (runtime/philox.h)
  int64_t first_sample = 0;  // position of row 0 in the global batch of the step
};

/// y = x / (1 - p) for elements that are kept, 0 for the others. The mask is drawn from Philox4x32-10 with key = seed
/// and counter = (element / 4 within the sample, position in the global batch, step, layer): the element is kept when
/// word element % 4 >= p * 2^32. The same call on the gradient is the backward pass.
///   x, y (N, ...) f32, f16 or bf16      values  empty, or (StepValues::kCount) i32: step and first_sample
/// requires  x and y have the same shape and dtype; y is x or does not overlap it
/// ensures   computed in f32, rounded once; the same mask on every device and split of the batch
/// throws    ShapeError, DtypeError, DeviceError; ConfigError when p is not in [0, 1)      source  Srivastava et al.
///           2014
void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y, ConstView values = {});

}  // namespace vitrine
