// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

struct DLManagedTensor;  // of <dlpack/dlpack.h>, version 0.5 or newer; NumPy's and PyTorch's capsules named "dltensor" hold one

namespace vitrine {

/// A tensor over the memory of a DLPack tensor, adopted by ctx (see ExecContext::adopt): nothing is copied. The tensor takes `managed` over and calls
/// its deleter when its last copy goes. Work on ctx does not wait for the producer's: synchronize that first, or order its stream before ctx's.
///   f32, f16, bf16, i32 or u8, contiguous row-major, at most Shape::kMaxRank dimensions; kDLCPU for cpu devices, kDLCUDA of the same index for GPUs
/// throws ConfigError, DtypeError, ShapeError, DeviceError, UnsupportedError; the caller then still owns `managed`.
Tensor from_dlpack(ExecContext& ctx, DLManagedTensor* managed);

/// The same memory as a DLPack tensor, kept alive until its deleter is called: on the thread that issues the device, and while that is open. All
/// cpu:N are kDLCPU device 0. The consumer does not wait for the device: synchronize first.
/// throws ConfigError (an empty tensor), UnsupportedError (a meta device).
DLManagedTensor* to_dlpack(const Tensor& tensor);

}  // namespace vitrine
