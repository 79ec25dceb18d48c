// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device_id.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/gpu_info.h"

/// The environment variable VITRINE_TEST_DEVICES selects the devices of tests:
///   cpu     (or unset) virtual devices cpu:0, cpu:1, ...
///   cuda    one GPU per device; with fewer GPUs than devices, they are shared in turn
///   cuda:0  all of them logical devices of the first GPU
/// Without a GPU, tests on cuda are skipped.
namespace vitrine::test {

inline std::string test_device_choice() {
  const char* const value = std::getenv("VITRINE_TEST_DEVICES");
  const std::string choice = value == nullptr || *value == '\0' ? "cpu" : value;
  if (choice != "cpu" && choice != "cuda" && choice != "cuda:0") {
    throw ConfigError("VITRINE_TEST_DEVICES is \"" + choice + "\"; use cpu, cuda or cuda:0");
  }
  return choice;
}

inline Backend test_backend() { return test_device_choice() == "cpu" ? Backend::cpu : Backend::cuda; }
inline bool on_gpu() { return test_backend() == Backend::cuda; }

inline std::vector<DeviceId> test_devices(int count) {
  const std::string choice = test_device_choice();
  const int gpus = choice == "cuda" ? cuda_device_count() : 1;
  std::vector<DeviceId> devices;
  for (int i = 0; i < count; ++i) {
    if (choice == "cpu") {
      devices.push_back({Backend::cpu, i});
    } else {
      devices.push_back({Backend::cuda, gpus > 0 ? i % gpus : 0});
    }
  }
  return devices;
}

/// Whether the devices compute in bf16, and in TF32 on request: GPUs do from compute capability 8.0 on.
inline bool has_bf16() {
  if (!on_gpu()) return true;
  const GpuReport report = query_gpus(false);
  return !report.gpus.empty() && report.gpus[0].has_bf16();
}

/// Skips every test of the program when it should run on GPUs and there is none. Turns CUDA graphs on, which wait for a
/// probe elsewhere, and fixes the order of NCCL's sums.
class SkipWithoutGpu final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (on_gpu()) setenv("VITRINE_CUDA_GRAPHS", "on", 0);
    if (on_gpu()) fix_order_of_sums();
    if (!on_gpu() || cuda_device_count() > 0) return;
    GTEST_SKIP() << "[  SKIPPED ] no GPU: " << query_gpus(false).problem;
  }
};
inline ::testing::Environment* const kSkipWithoutGpu = ::testing::AddGlobalTestEnvironment(new SkipWithoutGpu);

}  // namespace vitrine::test
