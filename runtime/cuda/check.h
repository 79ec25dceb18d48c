// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace vitrine::cuda {

/// throws CudaError with expression, code name, text, device and place unless `code` is cudaSuccess; clears the last
/// error.
void check(cudaError_t code, const char* expression, const char* file, int line, int device = -1);

/// Called when a library failed: throws CudaError with CUDA's own error of the current device if that is the cause (for
/// example, an illegal access of an earlier kernel); returns if the device is in order.
void check_device(const char* expression, const char* file, int line);

#define VITRINE_CUDA_CHECK(expression) ::vitrine::cuda::check((expression), #expression, __FILE_NAME__, __LINE__)
/// For calls that concern a device other than the current one.
#define VITRINE_CUDA_CHECK_ON(device, expression) \
  ::vitrine::cuda::check((expression), #expression, __FILE_NAME__, __LINE__, device)

/// Whether this process already uses a GPU. The query itself does not start using it.
bool is_in_use(int device);
/// A GPU that this process already uses, if possible the current one.
int device_in_use();
/// Makes a previously current device current again, unless that would be its first use in this process: CUDA takes
/// hundreds of MiB of a GPU that is made current, and the GPU may belong to another process.
void set_device_back(int device) noexcept;

/// Call before CUDA functions that take a stream, an event or memory, which belong to a device whichever is current:
/// the first call of a thread takes memory of the GPU that is current there, and that is GPU 0 on a new thread. Makes
/// `device` current unless the process already uses the current one.
void avoid_unused_gpu(int device) noexcept;
/// The same for pinned memory, which belongs to no device.
void avoid_unused_gpu() noexcept;

/// Makes `device` current on this thread for its lifetime, then restores the previous one as set_device_back() does.
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
