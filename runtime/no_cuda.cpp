// SPDX-License-Identifier: Apache-2.0
// Replaces the files cuda/*.cpp in builds without CUDA: there are no GPUs, and opening one fails. What only open GPUs
// reach does nothing.
#include <fmt/format.h>

#include "runtime/cuda/copy.h"
#include "runtime/cuda/device.h"
#include "runtime/error.h"
#include "runtime/gpu_info.h"

namespace vitrine {

GpuReport query_gpus(bool) {
  GpuReport report;
  report.problem =
      "this build does not include CUDA; install the CUDA toolkit (nvcc on PATH), then configure and build again";
  return report;
}

int cuda_device_count() { return 0; }

namespace cuda {

void open_gpus(const DeviceGroupOptions& options) {
  throw UnsupportedError(fmt::format("{}: {}", options.devices[0].str(), query_gpus(false).problem));
}
void* allocate_pinned(int64_t) {
  throw UnsupportedError(
      "HostBuffer: pinned host memory needs CUDA, which this build does not include; use pageable memory");
}

int64_t default_capacity(const DeviceGroupOptions&, size_t) { return 0; }
Device::Parts make_parts(const DeviceGroupOptions&, size_t, int64_t, OrderChecker*) { return {}; }
int64_t used_bytes(int) { return 0; }
std::vector<OutsideBytes> outside_bytes(int64_t, const std::vector<ExecContext*>&) { return {}; }
void free_pinned(void*) noexcept {}
void copy_on_gpu(ExecContext&, const ConstView&, const View&) {}
void zero_on_gpu(ExecContext&, const View&) {}
void copy_blocks_on_gpu(ExecContext&, std::span<const CopiedBlock>, const CopiedBlock&) {}

}  // namespace cuda
}  // namespace vitrine
