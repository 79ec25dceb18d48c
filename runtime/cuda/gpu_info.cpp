// SPDX-License-Identifier: Apache-2.0
#include "runtime/gpu_info.h"

#include <array>
#include <cstdlib>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "runtime/cuda/device.h"

namespace vitrine {
namespace {

std::string version_text(int version) {
  return version > 0 ? fmt::format("{}.{}", version / 1000, version % 1000 / 10) : std::string();
}

std::string problem_text(cudaError_t code, int driver_version, int runtime_version) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string hidden = visible == nullptr
                                 ? std::string()
                                 : fmt::format("; CUDA_VISIBLE_DEVICES is \"{}\", which hides all others", visible);
  if (driver_version == 0) {
    return "no NVIDIA driver is installed (or it is not visible in this container); install it, or use cpu devices";
  }
  if (code == cudaErrorInsufficientDriver) {
    return fmt::format(
        "the NVIDIA driver is for CUDA {}, older than CUDA {} which this program was built with; update the driver, or "
        "build with an "
        "older toolkit",
        version_text(driver_version), version_text(runtime_version));
  }
  if (code == cudaErrorNoDevice || code == cudaSuccess) return fmt::format("the driver sees no GPU{}", hidden);
  return fmt::format("CUDA failed to start: {}: {}{}{}", cudaGetErrorName(code), cudaGetErrorString(code),
                     cuda::remedy(code), hidden);
}

/// Returns false if the GPU does not answer.
bool read_attributes(GpuInfo& gpu) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, gpu.index) != cudaSuccess) return false;
  gpu.name = properties.name;
  gpu.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  gpu.compute_major = properties.major;
  gpu.compute_minor = properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  std::array<char, 32> bus{};
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), gpu.index) == cudaSuccess)
    gpu.pci_bus_id = bus.data();
  return true;
}

void read_memory_and_peers(GpuInfo& gpu, int count) {
  int previous = 0;
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaGetDevice(&previous) == cudaSuccess && cudaSetDevice(gpu.index) == cudaSuccess) {
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) gpu.free_bytes = static_cast<int64_t>(free_bytes);
    cudaSetDevice(previous);
  }
  for (int other = 0; other < count; ++other) {
    int reaches = 0;
    if (other != gpu.index && cudaDeviceCanAccessPeer(&reaches, gpu.index, other) != cudaSuccess) reaches = 0;
    gpu.peers.push_back(reaches != 0);
  }
}

}  // namespace

GpuReport query_gpus(bool details) {
  GpuReport report;
  int driver_version = 0, runtime_version = 0, count = 0;
  if (cudaDriverGetVersion(&driver_version) != cudaSuccess) driver_version = 0;
  if (cudaRuntimeGetVersion(&runtime_version) != cudaSuccess) runtime_version = 0;
  report.driver_version = version_text(driver_version);
  report.runtime_version = version_text(runtime_version);
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    cudaGetLastError();
    report.problem = problem_text(code, driver_version, runtime_version);
    return report;
  }
  for (int i = 0; i < count; ++i) {
    GpuInfo gpu;
    gpu.index = i;
    if (!read_attributes(gpu)) {
      report.problem = fmt::format("cuda:{} does not answer: {}", i, cudaGetErrorString(cudaGetLastError()));
      continue;
    }
    if (details) read_memory_and_peers(gpu, count);
    report.gpus.push_back(gpu);
  }
  cudaGetLastError();
  return report;
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace vitrine
