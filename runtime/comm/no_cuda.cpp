// SPDX-License-Identifier: Apache-2.0
// Replaces the files cuda/*.cpp in builds without CUDA.
#include <fmt/format.h>

#include "runtime/comm/communicator.h"
#include "runtime/error.h"

namespace vitrine {

namespace cuda {
std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices) {
  throw UnsupportedError(fmt::format("make_communicators: {}: this build does not include CUDA", devices[0].name()));
}
}  // namespace cuda

std::string nccl_version() { return {}; }

}  // namespace vitrine
