// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/copy.h"

#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"

namespace vitrine::cuda {

void copy_on_gpu(ExecContext& ctx, const ConstView& source, const View& destination) {
  const auto bytes = static_cast<size_t>(source.bytes());
  const cudaStream_t stream = native_stream(ctx);
  if (source.device.backend == Backend::cuda && destination.device.backend == Backend::cuda &&
      source.device != destination.device) {
    VITRINE_CUDA_CHECK(cudaMemcpyPeerAsync(destination.data, destination.device.index, source.data, source.device.index,
                                           bytes, stream));
    return;
  }
  const cudaMemcpyKind kind = source.device.is_host()        ? cudaMemcpyHostToDevice
                              : destination.device.is_host() ? cudaMemcpyDeviceToHost
                                                             : cudaMemcpyDeviceToDevice;
  VITRINE_CUDA_CHECK(cudaMemcpyAsync(destination.data, source.data, bytes, kind, stream));
}

void zero_on_gpu(ExecContext& ctx, const View& destination) {
  VITRINE_CUDA_CHECK(
      cudaMemsetAsync(destination.data, 0, static_cast<size_t>(destination.bytes()), native_stream(ctx)));
}

}  // namespace vitrine::cuda
