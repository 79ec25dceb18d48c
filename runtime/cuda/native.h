// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/cuda/fault.h"
#include "runtime/exec_context.h"

/// What CUDA implementations need of a context; its backend must be cuda.
namespace vitrine::cuda {

cudaStream_t native_stream(ExecContext& ctx);

/// What an implementation may ask of the GPU it runs on.
struct DeviceProperties {
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for sm_90
  int max_shared_bytes = 0;    // of a block, dynamic, after opting in
};
const DeviceProperties& properties(ExecContext& ctx);

/// The context's fault slot of this kind, made at the first call: where a kernel says that its data are wrong. See Fault.
Fault* fault_slot(ExecContext& ctx, FaultMessage message);

}  // namespace vitrine::cuda
