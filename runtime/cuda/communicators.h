// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"

namespace vitrine::cuda {

/// Communicators for a group of GPUs: NCCL's, or peer communicators when a GPU is named twice or NCCL is not built in.
/// throws UnsupportedError with the reason when neither fits, and in builds without CUDA; what make_nccl_communicators
/// throws
std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices);

}  // namespace vitrine::cuda
