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

void check(cudaError_t code, const char* expression, const char* file, int line, int device) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  if (device < 0 && cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  throw CudaError(
      fmt::format("{}: {}: {} (cuda:{}, {}:{}){}", expression, cudaGetErrorName(code), cudaGetErrorString(code), device, file, line, remedy(code)));
}

void check_device(const char* expression, const char* file, int line) {
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), expression, file, line);  // tells of errors that stay
}

DeviceScope::DeviceScope(int device) {
  VITRINE_CUDA_CHECK(cudaGetDevice(&previous_));
  if (previous_ != device) VITRINE_CUDA_CHECK(cudaSetDevice(device));
}

DeviceScope::~DeviceScope() { cudaSetDevice(previous_); }

}  // namespace vitrine::cuda
