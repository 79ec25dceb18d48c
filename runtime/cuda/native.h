// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/cuda/fault.h"
#include "runtime/exec_context.h"

/// Properties of a context for CUDA implementations. requires a CUDA context
namespace vitrine::cuda {

cudaStream_t native_stream(ExecContext& ctx);

/// Properties of the GPU that an implementation runs on.
struct DeviceProperties {
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for sm_90
  int max_shared_bytes = 0;    // of a block, dynamic, after opting in
};
const DeviceProperties& properties(ExecContext& ctx);

/// The context's fault slot of this kind, created by the first call, in which a kernel reports invalid data. See Fault.
Fault* fault_slot(ExecContext& ctx, FaultMessage message);

}  // namespace vitrine::cuda
