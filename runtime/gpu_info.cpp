// SPDX-License-Identifier: Apache-2.0
// For builds without CUDA; with CUDA, cuda/gpu_info.cpp is used.
#include "runtime/gpu_info.h"

namespace vitrine {

GpuReport query_gpus(bool) {
  GpuReport report;
  report.problem = "this build does not include CUDA; install the CUDA toolkit (nvcc on PATH), then configure and build again";
  return report;
}

int cuda_device_count() { return 0; }

}  // namespace vitrine
