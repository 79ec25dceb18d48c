// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/check.h"

#include <fmt/format.h>

#include "runtime/cuda/device.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"

namespace vitrine::cuda {

const char* remedy(int code) {
  switch (code) {
    case cudaErrorNoKernelImageForDevice:
      return "; this program was not built for this GPU's architecture; configure with "
             "-DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorMemoryAllocation:
      return "; other processes may hold the GPU's memory: see nvidia-smi";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
      return "; the GPU cannot continue in this process: restart it (compute-sanitizer finds the cause)";
    case cudaErrorInsufficientDriver:
      return "; update the NVIDIA driver";
    case cudaErrorDevicesUnavailable:
      return "; another process uses the GPU alone (exclusive compute mode): nvidia-smi shows both; end it, or use "
             "another GPU";
    case cudaErrorSystemNotReady:
      return "; the NVIDIA Fabric Manager must run, in the driver's version: systemctl start nvidia-fabricmanager";
    case cudaErrorNotPermitted:
      return "; the container, MPS or the compute mode does not permit it: try outside of them";
    case cudaErrorECCUncorrectable:
      return "; the GPU's memory is damaged: nvidia-smi -q -d ECC shows where; reset the GPU, or replace it";
    case cudaErrorStubLibrary:
      return "; the toolkit's stub was loaded in place of the driver: take lib64/stubs off LD_LIBRARY_PATH";
    default:
      return "";
  }
}

namespace {

/// Whether the process uses the GPU that is current on this thread.
bool current_is_in_use() noexcept {
  // A GPU stays in use until the process ends, so the driver is asked once for each GPU that a thread makes current.
  thread_local int known = -1;
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess) {
    cudaGetLastError();
    return true;  // the call that follows fails too and is checked
  }
  if (current != known && is_in_use(current)) known = current;
  return current == known;
}

}  // namespace

void check(cudaError_t code, const char* expression, const char* file, int line, int device) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  if (device < 0 && cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  throw CudaError(fmt::format("{}: {}: {} (cuda:{}, {}:{}){}{}", expression, cudaGetErrorName(code),
                              cudaGetErrorString(code), device, file, line, remedy(code), gpu_safe_hint()));
}

void check_device(const char* expression, const char* file, int line) {
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), expression, file, line);  // reports sticky errors
}

DeviceScope::DeviceScope(int device) {
  VITRINE_CUDA_CHECK(cudaGetDevice(&previous_));
  if (previous_ != device) VITRINE_CUDA_CHECK(cudaSetDevice(device));
}

DeviceScope::~DeviceScope() { set_device_back(previous_); }

bool is_in_use(int device) {
  // CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active), from the driver, which is not linked.
  using GetState = int (*)(int, unsigned*, int*);
  static const GetState get_state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000, cudaEnableDefault, &found);
    if (code != cudaSuccess) cudaGetLastError();
    return code == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState>(function) : nullptr;
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}

int device_in_use() {
  int current = 0, count = 0;
  VITRINE_CUDA_CHECK(cudaGetDevice(&current));
  if (is_in_use(current)) return current;
  VITRINE_CUDA_CHECK(cudaGetDeviceCount(&count));
  for (int device = 0; device < count; ++device) {
    if (is_in_use(device)) return device;
  }
  return current;
}

void avoid_unused_gpu(int device) noexcept {
  if (!current_is_in_use() && cudaSetDevice(device) != cudaSuccess) cudaGetLastError();
}

void avoid_unused_gpu() noexcept {
  int count = 0;
  if (current_is_in_use() || cudaGetDeviceCount(&count) != cudaSuccess) return;
  for (int device = 0; device < count; ++device) {
    if (is_in_use(device)) return avoid_unused_gpu(device);
  }
}

void set_device_back(int device) noexcept {
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess || current == device || !is_in_use(device)) return;
  if (cudaSetDevice(device) != cudaSuccess) cudaGetLastError();  // it is lost
}

}  // namespace vitrine::cuda
