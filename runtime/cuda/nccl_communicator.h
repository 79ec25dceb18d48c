// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"

namespace vitrine::cuda {

/// NCCL communicators for a group of distinct GPUs, one for each device: non-blocking, polled, aborted together. NCCL's algorithm and protocol are
/// pinned (NCCL_ALGO=Ring, NCCL_PROTO=Simple, unless the environment says otherwise), so that sums have the same bits in every run.
/// With DeviceGroupOptions::nccl_communicators those are used; abort() aborts them too, and collectives then fail until new ones are handed in.
/// throws CommError naming the ranks that did not join in time, CudaError, ConfigError when a communicator handed in does not fit its device.
std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(DeviceGroup& devices);

}  // namespace vitrine::cuda
