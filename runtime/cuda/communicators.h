// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace vitrine::cuda {

/// Creates NCCL communicators for a group of distinct GPUs, one for each device, aborted together (see NcclGroup).
/// NCCL chooses algorithm and protocol unless the environment does (fix_order_of_sums(), runtime/gpu_features.h). Uses
/// DeviceGroupOptions::nccl_communicators if set; abort() aborts those too, and collectives then fail until new ones
/// are passed. throws CommError naming the ranks that did not join in time, CudaError, ConfigError if a communicator
/// does not match its device.
std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(DeviceGroup& devices);

/// Why there is no NCCL: it is not built in, or cannot be loaded; empty if there is.
std::string why_no_nccl();

/// Creates communicators whose ranks access each other's memory: for logical devices that share a GPU (which NCCL does
/// not support) and for builds without NCCL. The ranks synchronize on the host while they issue; events order their
/// streams. Sums are added in rank order.
///   reason  why NCCL is not used, for description()
/// throws UnsupportedError naming two GPUs that cannot access each other's memory, or for more than 64 ranks.
std::vector<std::unique_ptr<Communicator>> make_peer_communicators(DeviceGroup& devices, const std::string& reason);

}  // namespace vitrine::cuda
