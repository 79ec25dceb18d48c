// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Copies `source` to `destination`: host to device, device to host, within a device or between devices.
///   requires  equal shapes and dtypes; host memory carries DeviceId::host()
/// stream  asynchronous on ctx, which belongs to one of the two devices; the bytes count towards the open span
///         aliasing  none
/// throws  ShapeError, DtypeError
void copy(ExecContext& ctx, ConstView source, View destination);

/// Sets every byte of `destination` to zero. Asynchronous.
void zero(ExecContext& ctx, View destination);

}  // namespace vitrine
