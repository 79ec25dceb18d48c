// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

struct DLManagedTensor;  // from <dlpack/dlpack.h>, version 0.5 or newer; capsules of NumPy and PyTorch named "dltensor"
                         // hold one

namespace vitrine {

/// Adopts the memory of a DLPack tensor (see ExecContext::adopt); nothing is copied. The result owns `managed` and
/// calls its deleter when the last copy is destroyed. Work on ctx does not wait for the producer: synchronize the
/// producer first, or order its stream before ctx's.
///   requires  f32, f16, bf16, i32 or u8; contiguous row-major; at most Shape::kMaxRank dimensions; kDLCPU for cpu
///             devices, kDLCUDA with equal index
/// throws ConfigError, DtypeError, ShapeError, DeviceError, UnsupportedError; the caller then still owns `managed`.
Tensor from_dlpack(ExecContext& ctx, DLManagedTensor* managed);

/// Exports a tensor's memory to DLPack and keeps it alive until the deleter is called, on the thread that issues to the
/// device and while the device is open. All cpu:N are kDLCPU device 0. The consumer does not wait for the device:
/// synchronize first. throws ConfigError (an empty tensor), UnsupportedError (a meta device).
DLManagedTensor* to_dlpack(const Tensor& tensor);

}  // namespace vitrine
