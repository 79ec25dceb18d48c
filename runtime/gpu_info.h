// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vitrine {

/// A GPU visible to the process, numbered as in CUDA (CUDA_VISIBLE_DEVICES applies).
struct GpuInfo {
  int index = 0;
  std::string name;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string pci_bus_id;  // "0000:65:00.0"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::vector<bool> peers;  // [i]: this GPU accesses the memory of GPU i directly
  /// True from sm_80 on: tensor cores for TF32 and bf16.
  bool has_bf16() const { return compute_major >= 8; }
};

struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string problem;                          // why there is no GPU, and the remedy; empty when there are GPUs
  std::string driver_version, runtime_version;  // "13.0"; empty when unknown
};

/// Queries CUDA for the GPUs of this machine. Never throws: a build without CUDA, a missing driver and a machine
/// without GPU are reported in `problem`. Takes no GPU memory except for the context that the query for free memory
/// creates; without `details` (names and counts only) it creates none.
GpuReport query_gpus(bool details);

/// Number of GPUs visible to the process; 0 on any problem.
int cuda_device_count();

}  // namespace vitrine
