// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/overlap.h"

#include <atomic>

#include "runtime/cuda/check.h"
#include "runtime/gpu_features.h"

namespace vitrine::cuda {
namespace {

constexpr int kFirstVersion = 90;  // compute capability, of the GPU and of the code
constexpr int kMostGpus = 64;      // beyond them launches do not overlap

bool is_turned_off() {
  static const bool off = !why_off(GpuFeature::overlapping_launches).empty();
  return off;
}

/// Asks the driver which version of the kernel it has loaded.
bool code_waits(const void* kernel) {
  cudaFuncAttributes attributes{};
  VITRINE_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= kFirstVersion && attributes.binaryVersion >= kFirstVersion;
}

}  // namespace

bool launches_overlap(const void* kernel) {
  if (is_turned_off()) return false;
  int gpu = 0;
  VITRINE_CUDA_CHECK(cudaGetDevice(&gpu));
  if (gpu >= kMostGpus) return false;
  enum Answer : signed char { unknown, yes, no };
  static std::atomic<Answer> answers[kMostGpus];
  Answer answer = answers[gpu].load(std::memory_order_relaxed);
  if (answer == unknown) {
    answer = code_waits(kernel) ? yes : no;
    answers[gpu].store(answer, std::memory_order_relaxed);
  }
  return answer == yes;
}

}  // namespace vitrine::cuda
