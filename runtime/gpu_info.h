// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vitrine {

/// One GPU that the process sees, numbered as CUDA does (CUDA_VISIBLE_DEVICES applies).
struct GpuInfo {
  int index = 0;
  std::string name;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string pci_bus_id;  // "0000:65:00.0"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::vector<bool> peers;  // [i]: this GPU reads and writes the memory of GPU i directly
  /// f32 work on tensor cores needs sm_80; bf16 too.
  bool has_bf16() const { return compute_major >= 8; }
};

struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string problem;                          // why there is none, and the remedy; empty when there are GPUs
  std::string driver_version, runtime_version;  // "13.0"; empty when unknown
};

/// What CUDA says of this machine. Never throws: a build without CUDA, a missing driver and a machine without GPU are told in `problem`.
/// Takes no GPU memory beyond the context that asking for free memory makes; with `details` off (names and counts only) it makes none.
GpuReport query_gpus(bool details);

/// Number of GPUs that the process sees; 0 on any problem.
int cuda_device_count();

}  // namespace vitrine
