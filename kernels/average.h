// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Exponential moving average of parameters: average += (1 - decay) * (param - average); the first update of the
/// optimizer copies param instead.
///   param, average (n) f32      step (1) i32: updates of the optimizer so far, this one included
///   control (StepControl::kCount) f32: unless kActive is 1, nothing changes
/// requires  no two buffers overlap; 0 < decay < 1      determinism  yes
/// source    torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay)
/// throws    ShapeError, DtypeError, DeviceError; ConfigError when decay is out of range
void update_average(ExecContext& ctx, double decay, ConstView param, View average, ConstView step, ConstView control);

/// Exchanges the contents of two buffers.
///   a, b (n) f32, which do not overlap
/// throws    ShapeError, DtypeError, DeviceError
void exchange(ExecContext& ctx, View a, View b);

}  // namespace vitrine
