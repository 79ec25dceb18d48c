// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/check.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::cuda {

namespace {

const char* remedy(cudaError_t code) {
  switch (code) {
    case cudaErrorNoKernelImageForDevice:
      return "; this program was not built for this GPU's architecture: configure with -DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorMemoryAllocation:
      return "; other processes may hold the GPU's memory: see nvidia-smi";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
      return "; the GPU cannot go on in this process: restart it (compute-sanitizer tells where it comes from)";
    case cudaErrorInsufficientDriver:
      return "; update the NVIDIA driver";
    default:
      return "";
  }
}

}  // namespace

void check(cudaError_t code, const char* expression, const char* file, int line) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  throw CudaError(
      fmt::format("{}: {}: {} (device {}, {}:{}){}", expression, cudaGetErrorName(code), cudaGetErrorString(code), device, file, line, remedy(code)));
}

DeviceScope::DeviceScope(int device) {
  VITRINE_CUDA_CHECK(cudaGetDevice(&previous_));
  if (previous_ != device) VITRINE_CUDA_CHECK(cudaSetDevice(device));
}

DeviceScope::~DeviceScope() { cudaSetDevice(previous_); }

}  // namespace vitrine::cuda
