// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace vitrine::cuda {

/// Creates communicators whose ranks access each other's memory: for logical devices that share a GPU (which NCCL does
/// not support) and for builds without NCCL. The ranks synchronize on the host while they issue; events order their
/// streams. Sums are added in rank order.
///   reason  why NCCL is not used, for description()
/// throws UnsupportedError naming two GPUs that cannot access each other's memory, or for more than 64 ranks.
std::vector<std::unique_ptr<Communicator>> make_peer_communicators(DeviceGroup& devices, const std::string& reason);

}  // namespace vitrine::cuda
