// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace vitrine::cuda {

/// Communicators whose ranks read and write each other's memory: for logical devices that share a GPU (NCCL refuses them) and for builds without
/// NCCL. The ranks meet on the host while they issue; their streams are ordered by events. Sums are added in rank order.
///   reason  why NCCL does not serve, for description()
/// throws UnsupportedError naming two GPUs that do not reach each other, or when there are more than 64 ranks.
std::vector<std::unique_ptr<Communicator>> make_peer_communicators(DeviceGroup& devices, const std::string& reason);

}  // namespace vitrine::cuda
