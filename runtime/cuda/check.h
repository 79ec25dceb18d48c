// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace vitrine::cuda {

/// throws CudaError with expression, code name, text, device and place unless `code` is cudaSuccess; clears the sticky last error.
void check(cudaError_t code, const char* expression, const char* file, int line);

#define VITRINE_CUDA_CHECK(expression) ::vitrine::cuda::check((expression), #expression, __FILE__, __LINE__)

/// Makes `device` current on this thread for its lifetime.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace vitrine::cuda
