// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/native.h"

#include "runtime/cuda/check.h"
#include "runtime/cuda/stream.h"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

CudaStream& stream_of(ExecContext& ctx) {
  VITRINE_ASSERT(ctx.backend() == Backend::cuda, "only GPUs have native streams");
  return static_cast<CudaStream&>(ctx.stream());
}

/// Read once for each context.
struct CachedProperties {
  bool known = false;
  DeviceProperties values;
};

}  // namespace

cudaStream_t native_stream(ExecContext& ctx) { return stream_of(ctx).native(); }

Fault* fault_slot(ExecContext& ctx, FaultMessage message) { return stream_of(ctx).fault_slot(message); }

const DeviceProperties& properties(ExecContext& ctx) {
  auto& cached = ctx.plans().get<CachedProperties>();
  if (!cached.known) {
    const auto attribute = [&](cudaDeviceAttr name) {
      int value = 0;
      VITRINE_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, ctx.device().index));
      return value;
    };
    cached.values.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    cached.values.compute_capability =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    cached.values.max_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    cached.known = true;
  }
  return cached.values;
}

}  // namespace vitrine::cuda
