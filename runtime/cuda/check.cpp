// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/check.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::cuda {

void check(cudaError_t code, const char* expression, const char* file, int line) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  throw CudaError(fmt::format("{}: {}: {} (device {}, {}:{})", expression, cudaGetErrorName(code), cudaGetErrorString(code), device, file, line));
}

DeviceScope::DeviceScope(int device) {
  VITRINE_CUDA_CHECK(cudaGetDevice(&previous_));
  if (previous_ != device) VITRINE_CUDA_CHECK(cudaSetDevice(device));
}

DeviceScope::~DeviceScope() { cudaSetDevice(previous_); }

}  // namespace vitrine::cuda
