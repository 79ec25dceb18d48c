// SPDX-License-Identifier: Apache-2.0
// Replaces nccl_communicator.cpp in CUDA builds without NCCL.
#include "runtime/cuda/communicators.h"
#include "runtime/error.h"

namespace vitrine {

std::vector<std::unique_ptr<Communicator>> cuda::make_nccl_communicators(DeviceGroup&) {
  throw UnsupportedError("make_communicators: NCCL is not built in");
}

std::string nccl_version() { return {}; }
std::string cuda::why_no_nccl() { return "this build has no NCCL"; }

}  // namespace vitrine
