// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Parts of the GPU backend that can be turned off, each by an environment variable that is "on", "off" or
/// "off: REASON". VITRINE_CUDA_SAFE=1 turns off all that is faster but proven on fewer GPUs. What no GPU has run yet is
/// off unless its variable says otherwise, and so are graphs, which the program `vitrine` turns on when its probe has
/// passed: a program of your own does so after probe_gpu() (kernels/gpu_probe.h).
namespace vitrine {

enum class GpuFeature : uint8_t {
  overlapping_launches,  // a kernel starts before the one that precedes it has ended (programmatic dependent launch)
  graphs,                // steps are replayed as CUDA graphs
  graph_collectives,     // NCCL's collectives are part of them
  fused_epilogues,       // cuBLASLt and cuDNN add bias and ReLU to their products
  cudnn,                 // convolution by cuDNN; otherwise by our own
  peer_access,           // GPUs read and write each other's memory; otherwise copies pass through the host
};

/// Why a feature is off; empty if it is on. Reads the environment. throws ConfigError for a value that is none of those
std::string why_off(GpuFeature feature);
/// The variable that turns the feature on and off.
const char* variable_of(GpuFeature feature);

struct GpuFeatureState {
  const char *variable, *use;
  std::string off;  // why_off()
};
/// All features, for reports.
std::vector<GpuFeatureState> gpu_features();

/// Sets NCCL_ALGO to Ring, NCCL_PROTO to Simple and NCCL_GRAPH_REGISTER to 0, unless they are set: then sums over GPUs
/// have the same bits in every run. Call it in main(), before there are threads. Otherwise NCCL chooses, which is often
/// faster, and EngineFacts::communicator says so.
void fix_order_of_sums();

/// Whether VITRINE_CUDA_SAFE is 1. throws ConfigError for a value other than 0 and 1
bool is_gpu_safe_mode();
/// The end of a message about a failure of CUDA or its libraries: names VITRINE_CUDA_SAFE, unless it is set.
std::string gpu_safe_hint();

}  // namespace vitrine
