// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

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

/// Pinned host memory in which a kernel reports invalid data (for example, a target out of range): values first, then
/// raised = 1; the first fault counts. The stream's failed() and synchronize() check it and throw a DataError. Work
/// after the faulty kernel still runs, so the kernel must also invalidate the data that decides whether parameters
/// change.
struct Fault {
  int32_t raised;
  int32_t claimed;  // where several threads may find a fault: 1 once one of them writes the values
  int64_t values[4];
};

/// Formats the error from Fault::values.
using FaultMessage = std::string (*)(const int64_t* values);

/// The context's fault slot of this kind, created by the first call, in which a kernel reports invalid data. See Fault.
Fault* fault_slot(ExecContext& ctx, FaultMessage message);

}  // namespace vitrine::cuda
