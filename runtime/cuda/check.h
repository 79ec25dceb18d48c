// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace vitrine::cuda {

/// throws CudaError with expression, code name, text, device and place unless `code` is cudaSuccess; clears the sticky last error.
void check(cudaError_t code, const char* expression, const char* file, int line, int device = -1);

/// Where a library failed: throws CudaError with CUDA's own error of the current device when that is the cause (an earlier kernel's illegal access,
/// say); returns when the device is in order.
void check_device(const char* expression, const char* file, int line);

#define VITRINE_CUDA_CHECK(expression) ::vitrine::cuda::check((expression), #expression, __FILE__, __LINE__)
/// For calls that concern another device than the current one.
#define VITRINE_CUDA_CHECK_ON(device, expression) ::vitrine::cuda::check((expression), #expression, __FILE__, __LINE__, device)

/// Whether this process uses a GPU already. Asking does not begin to.
bool is_in_use(int device);
/// A GPU that this process uses already: the current one if possible.
int device_in_use();
/// Makes a device current again that was so before, unless this would be its first use in this process: CUDA takes hundreds of MiB of a GPU that is
/// only made current, and a process may have been given another one.
void set_device_back(int device) noexcept;

/// Makes `device` current on this thread for its lifetime, and then, as set_device_back() does, the one that was.
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
